"""Merged MLP matrices and the unequal parts of hybrid layers: each part is cut on its own."""

from __future__ import annotations

import pytest
from tiny_checkpoints import checkpoint, linear, names
from tiny_decoders import llama_config, llama_shapes

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
        del (
            shapes[f"model.layers.{layer}.mlp.gate_proj.weight"],
            shapes[f"model.layers.{layer}.mlp.up_proj.weight"],
        )
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


MIXER = "backbone.layers.0.mixer"


def nemotron(tmp_path, heads, groups):
    """A Nemotron-H of a Mamba-2 layer and an attention layer: Mamba heads of width 2, a state of 3."""
    config = {
        "model_type": "nemotron_h",
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "hybrid_override_pattern": "M*",
        "mamba_num_heads": heads,
        "mamba_head_dim": 2,
        "n_groups": groups,
        "ssm_state_size": 3,
        "conv_kernel": 4,
        "num_attention_heads": 60,
        "num_key_value_heads": 60,
        "head_dim": 1,
        "intermediate_size": 60,
        "vocab_size": 60,
    }
    inner, state = 2 * heads, 3 * groups
    shapes = {
        "backbone.embeddings.weight": (60, 4),
        "backbone.layers.0.norm.weight": (4,),
        f"{MIXER}.in_proj.weight": (2 * inner + 2 * state + heads, 4),
        **linear(f"{MIXER}.conv1d", inner + 2 * state, 1),
        **{f"{MIXER}.{name}": (heads,) for name in ("A_log", "D", "dt_bias")},
        f"{MIXER}.norm.weight": (inner,),
        f"{MIXER}.out_proj.weight": (4, inner),
        "backbone.layers.1.norm.weight": (4,),
        **{f"backbone.layers.1.mixer.{name}_proj.weight": (60, 4) for name in "qkv"},
        "backbone.layers.1.mixer.o_proj.weight": (4, 60),
        "backbone.norm_f.weight": (4,),
        "lm_head.weight": (60, 4),
    }
    shapes[f"{MIXER}.conv1d.weight"] = (inner + 2 * state, 1, 4)
    return checkpoint(tmp_path / "model", config, shapes)


WIDTHS = {"z": 2, "x": 2, "B": 3, "C": 3, "t": 1}


def test_the_one_group_of_mamba_2_is_whole_on_every_rank(tmp_path):
    """(vllm-project/vllm#13660) With n_groups 1, B and C cannot be cut beside the heads."""
    model = nemotron(tmp_path, heads=4, groups=1)
    ranks = model.cut(2)
    assert model.held(
        ranks, f"{MIXER}.in_proj.weight", f"{names('z x', 4)} B0 C0 {names('t', 4)}", WIDTHS
    ) == [
        "z0 z1 x0 x1 B0 C0 t0 t1",
        "z2 z3 x2 x3 B0 C0 t2 t3",
    ]
    for parameter in ("weight", "bias"):
        units = f"{names('x', 4)} B0 C0"
        found = model.held(ranks, f"{MIXER}.conv1d.{parameter}", units, WIDTHS)
        assert found == ["x0 x1 B0 C0", "x2 x3 B0 C0"]


def test_groups_go_where_their_heads_go(tmp_path):
    """(vllm-project/vllm#13660) 2 groups of 4 heads: at tp 4 a rank has one head and its group."""
    model = nemotron(tmp_path, heads=4, groups=2)
    units = f"{names('z x', 4)} {names('B C', 2)} {names('t', 4)}"
    assert model.held(model.cut(4), f"{MIXER}.in_proj.weight", units, WIDTHS) == [
        "z0 x0 B0 C0 t0",
        "z1 x1 B0 C0 t1",
        "z2 x2 B1 C1 t2",
        "z3 x3 B1 C1 t3",
    ]


def test_groups_that_ranks_cannot_share_are_an_error_naming_the_mixer(tmp_path):
    """(vllm-project/vllm#13660) 15 heads fit 5 ranks, but their 3 groups do not."""
    said = nemotron(tmp_path, heads=15, groups=3).refusal(5)
    for name in ("in_proj", "conv1d"):
        assert f"layers.0.mixer.{name}: merged" in said
    assert "n_groups = 3: 5 % 3 = 2" in said
    assert "out_proj" not in said
    assert "layers.1" not in said
