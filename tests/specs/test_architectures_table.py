"""docs/architectures.md and the proofs that it reports are those of the specs as they are."""

from __future__ import annotations

import pytest

from scripts.make_architectures import TABLE, render
from scripts.proofs import DECODERS, decoders, has_plan, read_proofs, stale, undone
from tpspec.language.registry import built_in_index, spec_named
from tpspec.resolve import resolve

PROOFS = read_proofs()


def test_every_spec_is_proved_as_it_is_written() -> None:
    assert stale(PROOFS) == [], "make architectures"
    faults = {
        kind: [*filter(None, [proof.get("failure")]), *(r for r in proof["tp"].values() if "failure" in r)]
        for kind, proof in PROOFS.items()
    }
    assert {kind: found for kind, found in faults.items() if found} == {}


def test_every_type_is_proved_at_2_and_4() -> None:
    assert [kind for kind, proof in PROOFS.items() if not {"2", "4"} <= proof["tp"].keys()] == []


@pytest.mark.parametrize("kind", sorted(PROOFS))
def test_heads_that_may_be_copied_are_copied_at_8(kind: str) -> None:
    from tpspec.runtime.tiny import tiny_config

    spec = spec_named(built_in_index()[kind])
    copied = dict(resolve(spec, tiny_config(kind, spec.tiny).to_dict()).copied_above)
    assert bool(copied) == any(axis.replicate for axis in spec.axes.values())
    assert min(copied.values(), default=1) < 8


def test_the_table_of_architectures_is_up_to_date() -> None:
    assert TABLE.read_text() == render(PROOFS), "make architectures"


def test_a_type_has_either_a_spec_or_a_reason_why_not() -> None:
    specs, reasons = built_in_index().keys() & set(decoders()), undone().keys()
    assert specs & reasons == set()
    assert specs | reasons == set(decoders())


def test_the_decoders_are_the_causal_lm_mapping_but_for_what_was_left_out() -> None:
    import yaml
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    listed = yaml.safe_load(DECODERS.read_text())
    left_out = [kind for kinds in listed["left_out"].values() for kind in kinds]
    assert sorted([*listed["decoders"], *left_out]) == sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert {kind: has_plan(kind) for kind in PROOFS} == {
        kind: proof["plan"] for kind, proof in PROOFS.items()
    }
