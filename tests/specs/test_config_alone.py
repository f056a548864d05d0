"""What commands say of a config alone, of every spec's tiny model."""

from __future__ import annotations

import json

import pytest
from tiny_models import VARIANTS

from tpspec.pictures.write import write_map
from tpspec.planning.weights import inventory
from tpspec.resolve import resolve
from tpspec.runtime.building import text_model_config
from tpspec.runtime.tiny import tiny_config
from tpspec.shard_map import shard_map

TINY = [variant for variant in VARIANTS if variant.name == "tiny"]


@pytest.mark.parametrize("variant", TINY, ids=str)
def test_the_shard_map_of_a_config_is_shown_and_drawn(variant, tmp_path):
    config = tiny_config(variant.model_type, variant.spec.tiny).to_dict()
    resolution = resolve(variant.spec, config)
    rows = shard_map(resolution, 2)
    assert sum(row.count for row in rows) == sum(item.count for item in resolution.shared)
    assert json.dumps([row.as_json() for row in rows])
    page = tmp_path / "map.html"
    write_map("tiny", variant.spec_name, rows, 2, html=page, svg=None, png=None)
    assert all(row.name in page.read_text("utf-8") for row in rows)


def test_queries_stand_apart_where_layers_have_other_numbers_of_kv_heads():
    (mimo,) = (variant for variant in TINY if variant.spec_name == "mimo_v2_flash")
    rows = shard_map(resolve(mimo.spec, tiny_config(mimo.model_type, mimo.spec.tiny).to_dict()), 2)
    queries = {row.name: dict(row.heads)["q"].units for row in rows if row.name.endswith("q_proj")}
    assert queries == {"model.layers.0,2.self_attn.q_proj": 4, "model.layers.1.self_attn.q_proj": 8}


UNTOLD = {
    "axk1": "an optional vector",
    "blt": "the patcher is a model of its own",
    "dbrx": "its class refuses a tied head",
    "inkling2_text": "queries over as many blocks as there are before",
    "longcat_flash": "matrices of experts that give back what they get",
    "phi4_multimodal": "the other modalities' towers",
    "qwen4_exp_text": "a table whose sizes are primes",
}
"""What a config alone does not tell, by spec; `tpspec plan` says so in words."""


@pytest.mark.parametrize("variant", [v for v in TINY if v.spec_name not in UNTOLD], ids=str)
def test_biases_and_tied_heads_are_counted_as_transformers_builds_them(variant):
    import torch
    from transformers import AutoModelForCausalLM

    spec, values = variant.spec, dict(variant.spec.tiny)
    switches = text_model_config(tiny_config(variant.model_type, values)).to_dict()
    for key, value in switches.items():
        if isinstance(value, bool) and ("bias" in key or key == "tie_word_embeddings"):
            values[key] = not value
    config = tiny_config(variant.model_type, values)
    built = text_model_config(config) if spec.model_class == "text" else config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(built)
    model.tie_weights()
    stored = {id(tensor): tensor.numel() for tensor in model.state_dict(keep_vars=True).values()}
    planned = resolve(spec, config.to_dict())
    assert planned.findings == ()
    assert inventory(planned).parameters == sum(stored.values())
