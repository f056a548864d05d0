"""What commands say of a config alone, of every spec's tiny model."""

from __future__ import annotations

import json

import pytest
from tiny_models import VARIANTS

from tpspec.pictures.write import write_map
from tpspec.resolve import resolve
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
