"""A rank keeps its own of the modules that a checkpoint lists by head."""

from __future__ import annotations

import pytest
import torch

from tpspec.language.registry import spec_named
from tpspec.runtime.memory_names import MemoryNames
from tpspec.runtime.selected import keep_selected
from tpspec.runtime.tiny import tiny_model
from tpspec.scope import ConfigScope


@pytest.mark.parametrize(
    ("tp", "rank", "queries", "keys"), [(2, 1, [4, 5, 6, 7], [2, 3]), (4, 0, [0, 1], [0]), (8, 5, [5], [2])]
)
def test_the_rank_s_norms_are_left_and_numbered_from_zero(tp, rank, queries, keys):
    spec = spec_named("stablelm")
    model = tiny_model(spec)
    attention = model.model.layers[1].self_attn
    before = {name: list(getattr(attention, name).norms) for name in ("q_layernorm", "k_layernorm")}
    names = MemoryNames(spec, model)
    keep_selected(names, ConfigScope(spec, model.config.to_dict(), tp), rank)
    for name, heads in (("q_layernorm", queries), ("k_layernorm", keys)):
        norms = getattr(attention, name).norms
        assert [norms[i] for i in range(len(norms))] == [before[name][head] for head in heads]
        stored = f"model.layers.1.self_attn.{name}.norms.{heads[-1]}"
        assert names.modules[names.module(stored)] is norms[-1]


def test_a_model_without_such_norms_is_left_alone():
    spec = spec_named("stablelm")
    model = tiny_model(spec, {"qk_layernorm": False})
    before = [name for name, _ in model.named_parameters()]
    keep_selected(MemoryNames(spec, model), ConfigScope(spec, model.config.to_dict(), 4), 0)
    assert [name for name, _ in model.named_parameters()] == before
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
