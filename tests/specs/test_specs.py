"""The built-in specs, held against models that transformers builds from its own config classes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from math import prod

import pytest
from tiny_models import LEGACY, SPEC_NAMES, VARIANTS, Variant, variants_of

from scripts.proofs import read_proofs
from tpspec.language.registry import BUILT_IN, built_in_index, make_index, spec_named
from tpspec.layout import Layout
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution
from tpspec.resolve import resolve
from tpspec.rules import Rules
from tpspec.scope import ConfigScope
from tpspec.sites import implied_sites, predicted

SIZES = (2, 4, 8)
MAX_LINES = 60

PROOFS = read_proofs()
SAID_BY_CONFIG = {"hidden_size", "num_hidden_layers", "num_attention_heads"}
"""Sizes for which a spec knows two spellings, and no default: without them there is no model."""

variants = pytest.mark.parametrize("variant", VARIANTS, ids=str)
specs = pytest.mark.parametrize("name", SPEC_NAMES)
BUILT = tuple(dict.fromkeys(variant.spec_name for variant in VARIANTS))
"""The specs of which transformers builds a model; the others are bases, or their code is elsewhere."""


@cache
def resolved(variant: Variant) -> Resolution:
    checkpoint = variant.checkpoint
    return resolve(variant.spec, checkpoint.config, checkpoint.tensors)


@cache
def layout(variant: Variant, tp: int) -> Layout:
    return resolved(variant).layout(tp)


@variants
def test_every_tensor_has_one_rule_and_every_rule_its_tensors(variant):
    assert resolved(variant).findings == ()


@variants
def test_the_config_alone_gives_the_same_tp_sizes(variant):
    alone = resolve(variant.spec, variant.checkpoint.config)
    assert alone.findings == ()
    assert alone.valid_tp == resolved(variant).valid_tp
    assert {1, 2, 4, 8} <= set(alone.valid_tp)
    assert dict(alone.copied_above) == dict(resolved(variant).copied_above)


UNSAID = {
    "blt": {"model.patcher.**"},
    "inkling2_text": {"attn_res.attn_queries.{query}"},
    "phi4_multimodal": {"model.embed_tokens_extend.**"},
    "qwen4_exp_text": {
        "model.layers.{layer}.ple.ple_embedding.layer_multipliers",
        "model.layers.{layer}.ple.ple_embedding.ngram_heads_offsets",
        "model.layers.{layer}.ple.ple_embedding.ngram_heads_vocab_sizes",
        "model.layers.{layer}.ple.ple_embedding.ngram_embedding.shard_{part}",
    },
}
"""What has no shape before the checkpoint is seen: models inside the model, and sizes that are primes."""


@variants
def test_the_config_alone_gives_the_shape_of_every_tensor(variant):
    alone = resolve(variant.spec, variant.checkpoint.config)
    unknown = [item for item in alone.shared if item.tensor is None and item.count and not item.sharing.apart]
    left_out = {item.placed.template for item in unknown}
    assert left_out in (set(), UNSAID.get(variant.spec_name, set()))
    assert _shapes(alone, left_out) == _shapes(resolved(variant), left_out)


def _shapes(resolution: Resolution, left_out: set[str]) -> dict[str, Counter[tuple[str, tuple[int, ...]]]]:
    """How many tensors of each shape a rule has; of forms, which name them otherwise, how many elements."""
    found: dict[str, Counter[tuple[str, tuple[int, ...]]]] = defaultdict(Counter)
    rules = Rules(resolution.scope(), detect_format(resolution.config))
    for item in resolution.shared:
        placed, tensor = item.placed, item.tensor
        if tensor is None or item.sharing.apart or placed.template in left_out:
            continue
        if rules.optional(placed, item.binding):
            continue
        if placed.form:
            found[placed.form[0]]["elements", ()] += item.count * prod(tensor.shape)
        else:
            found[placed.template][item.parameter or "weight", tensor.shape] += item.count
    return found


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.name == "tiny"], ids=str)
def test_a_pass_runs_the_collectives_that_were_predicted_from_the_config_and_from_the_checkpoint(variant):
    alone = resolve(variant.spec, variant.checkpoint.config)
    text_alone = not variant.spec.inputs
    for tp, proved in PROOFS[variant.model_type]["tp"].items():
        counted = {kind: number for kind, number in proved.items() if kind != "error"}
        for resolution in (alone, resolved(variant)):
            assert predicted(implied_sites(resolution, int(tp)), text_alone=text_alone) == counted


@pytest.mark.parametrize("tp", SIZES)
@variants
def test_each_index_is_held_once_or_as_often_as_its_units_are_copied(variant, tp):
    sharings = {item.tensor.name: item.sharing for item in resolved(variant).shared}
    for name, tensor in layout(variant, tp).tensors.items():
        sharing, cut = sharings[name], tensor.cut
        parts = [part.axis.copies(tp) if part.axis else tp for part in sharing.parts]
        parts += [sharing.select[0].copies(tp)] if sharing.select else []
        allowed = set(parts) if parts else {1 if sharing.once else tp}
        assert {count for _, _, count in cut.copies()} <= allowed, name


@pytest.mark.parametrize("tp", SIZES)
@variants
def test_all_ranks_hold_one_shape(variant, tp):
    for tensor in layout(variant, tp).tensors.values():
        assert len({tensor.local_shape(rank) for rank in range(tp)}) == 1, tensor.name


@variants
def test_nothing_is_lost_between_ranks_and_extras(variant):
    found = layout(variant, 2)
    assert {*found.tensors, *found.extras} == set(variant.checkpoint.tensors)
    assert set(variant.extra) == set(found.extras)


@pytest.mark.parametrize("name", sorted({variant.spec_name for variant in VARIANTS}))
def test_every_rule_is_used_by_some_tiny_model(name):
    used = {
        (item.placed.template, item.placed.place)
        for variant in variants_of(name)
        for item in resolved(variant).shared
    }
    rules = {
        (placed.template, placed.place)
        for placed in spec_named(name).rules
        if not (placed.rule.optional and placed.rule.tag == "once")  # a module's output has no tensor
    }
    assert rules - used == set()


@pytest.mark.parametrize(
    ("name", "model_type"),
    [(name, kind) for name in BUILT for kind in spec_named(name).model_types if kind not in LEGACY],
)
def test_what_a_config_leaves_out_has_the_default_of_its_class(name, model_type):
    from transformers import AutoConfig

    spec = spec_named(name)
    for values in ({}, spec.tiny):
        full = AutoConfig.for_model(model_type, **values).to_dict()
        for key in spec.let.keys() - SAID_BY_CONFIG:
            partial = {k: v for k, v in full.items() if k not in (key, "model_type")}
            default = default_of(key, model_type, partial)
            if default is not None:  # else the model's code, not its config class, decides
                assert ConfigScope(spec, partial).lookup(key, {}) == default, key


def default_of(key: str, model_type: str, partial: dict[str, object]) -> object:
    """What a config class puts in for a key; None where it cannot do without, or has a value per layer."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.integrations.heterogeneity.configuration_utils import (
        AmbiguousGlobalPerLayerAttributeError,
    )

    try:
        return getattr(AutoConfig.for_model(model_type, **partial), key, None)
    except (StrictDataclassError, AmbiguousGlobalPerLayerAttributeError):
        return None


@specs
def test_a_spec_opens_with_what_differs_and_is_short(name):
    lines = (BUILT_IN / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= MAX_LINES


def test_the_index_of_model_types_is_up_to_date():
    assert (BUILT_IN / "index.json").read_text() == json.dumps(make_index(), indent=1) + "\n"
    assert set(built_in_index().values()) == {name for name in SPEC_NAMES if spec_named(name).model_types}
