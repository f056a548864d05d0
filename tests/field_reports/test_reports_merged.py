"""Merged MLP matrices and the unequal parts of hybrid layers: each part is cut on its own."""

from __future__ import annotations

import pytest
from tiny_checkpoints import checkpoint, llama_config, llama_shapes, names

MERGED = """
hidden: hidden_size
axes: {ffn: {units: intermediate_size}}
modules:
  mlp.gate_up: {merged: [ffn, ffn]}
  mlp.down: {row: ffn}
"""


@pytest.mark.parametrize(
    ("units", "ranks"),
    [
        ("g0 g1 g2 g3 u0 u1 u2 u3", ["g0 g1 u0 u1", "g2 g3 u2 u3"]),
        ("u0 u1 u2 u3 g0 g1 g2 g3", ["u0 u1 g0 g1", "u2 u3 g2 g3"]),
    ],
    ids=["gate-first", "up-first"],
)
def test_each_half_of_a_merged_matrix_is_cut(tmp_path, units, ranks):
    """(vllm-project/vllm#3775) OLMo's merged matrix, cut as one column, gives one rank all the gates."""
    shapes = {"mlp.gate_up.weight": (8, 3), "mlp.gate_up.bias": (8,), "mlp.down.weight": (3, 4)}
    config = {"hidden_size": 3, "intermediate_size": 4}
    model = checkpoint(tmp_path / "model", config, shapes, spec=MERGED)
    found = model.cut(2)
    assert model.held(found, "mlp.gate_up.weight", units) == ranks
    assert model.held(found, "mlp.gate_up.bias", units) == ranks
    assert model.held(found, "mlp.down.weight", names("f", 4), dim=1) == ["f0 f1", "f2 f3"]


def test_a_merged_matrix_under_a_plain_column_rule_is_an_error(tmp_path):
    """(vllm-project/vllm#3775) Its rows are twice what a column rule expects."""
    shapes = {"mlp.gate_up.weight": (8, 3), "mlp.down.weight": (3, 4)}
    config = {"hidden_size": 3, "intermediate_size": 4}
    spec = MERGED.replace("{merged: [ffn, ffn]}", "{column: ffn}")
    said = checkpoint(tmp_path / "model", config, shapes, spec=spec).refusal(2)
    assert "mlp.gate_up.weight: shape [8, 3] has 8 in dimension 0, but config.json makes it 4" in said


def test_an_inherited_mlp_may_be_merged(tmp_path):
    """(xLLM-AI/xllm#1616) GLM-4's gate_up_proj, cut whole on dimension 0, in a spec that extends Llama's."""
    spec = """
extends: llama
modules:
  model.layers.{layer}.mlp.{gate_proj,up_proj}: null
  model.layers.{layer}.mlp.gate_up_proj: {merged: [ffn, ffn]}
"""
    config = llama_config(intermediate_size=4, num_hidden_layers=2)
    shapes = llama_shapes(config)
    for layer in range(2):
        del shapes[f"model.layers.{layer}.mlp.gate_proj.weight"], shapes[f"model.layers.{layer}.mlp.up_proj.weight"]
        shapes[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = (8, 16)
    model = checkpoint(tmp_path / "model", config, shapes, spec=spec)
    ranks = model.cut(2)
    for layer in range(2):
        found = model.held(ranks, f"model.layers.{layer}.mlp.gate_up_proj.weight", names("g u", 4))
        assert found == ["g0 g1 u0 u1", "g2 g3 u2 u3"]


def test_unequal_parts_of_a_hybrid_layer_are_cut_each_on_its_own(tmp_path):
    """(NVIDIA-NeMo/Megatron-Bridge#1690) Q|K|V|Z|beta|alpha cut evenly puts values among the queries."""
    spec = """
hidden: hidden_size
axes:
  k: {units: linear_num_key_heads, width: linear_key_head_dim}
  v: {units: linear_num_value_heads, width: linear_value_head_dim}
modules:
  mixer.in_proj: {merged: [k, k, v, v, {axis: v, width: 1}, {axis: v, width: 1}]}
  mixer.conv1d:  {merged: [k, k, v]}
  mixer.out_proj: {row: v}
"""
    config = {
        "hidden_size": 5,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 3,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 2,
    }
    shapes = {
        "mixer.in_proj.weight": (2 * 6 + 2 * 8 + 2 * 4, 5),
        "mixer.conv1d.weight": (2 * 6 + 8, 1, 4),
        "mixer.out_proj.weight": (5, 8),
    }
    width = {"Q": 3, "K": 3, "V": 2, "Z": 2, "b": 1, "a": 1}
    model = checkpoint(tmp_path / "model", config, shapes, spec=spec)
    ranks = model.cut(2)
    parts = f"{names('Q K', 2)} {names('V Z b a', 4)}"
    assert model.held(ranks, "mixer.in_proj.weight", parts, width) == [
        "Q0 K0 V0 V1 Z0 Z1 b0 b1 a0 a1",
        "Q1 K1 V2 V3 Z2 Z3 b2 b3 a2 a3",
    ]
    parts = f"{names('Q K', 2)} {names('V', 4)}"
    assert model.held(ranks, "mixer.conv1d.weight", parts, width) == ["Q0 K0 V0 V1", "Q1 K1 V2 V3"]
    assert "linear_num_key_heads = 2: 2 % 4 = 2" in model.refusal(4)
