"""Biases of row-parallel matrices: in the sum of the ranks, each counts once."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, linear, load, names, norm, rank_path, repeated, save, tpspec
from tiny_decoders import llama_config, llama_shapes

MLP = """
hidden: hidden_size
axes: {ffn: {units: intermediate_size}}
modules:
  up:   {column: ffn}
  down: {row: ffn, bias: true}
"""


def mlp(tmp_path):
    """A row-parallel matrix of ones with the bias [10, 20]."""
    given = {
        "up.weight": np.ones((4, 2), np.float32),
        "down.weight": np.ones((2, 4), np.float32),
        "down.bias": np.array([10, 20], np.float32),
    }
    config = {"hidden_size": 2, "intermediate_size": 4}
    return checkpoint(tmp_path / "model", config, {}, spec=MLP, given=given)


def summed(ranks, module, x):
    """The all-reduced output of a row-parallel linear: each rank's part of x, its own bias."""
    parts = zip(ranks, np.split(x, len(ranks)), strict=True)
    return sum(rank[f"{module}.weight"] @ part + rank[f"{module}.bias"] for rank, part in parts)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_row_bias_is_added_once_at_every_tp(tmp_path, tp):
    """(Wenyueh/MinivLLM#80) The bias on every rank gives [24, 44] at tp 2."""
    assert summed(mlp(tmp_path).cut(tp), "down", np.ones(4)).tolist() == [14, 24]


def test_a_row_bias_on_rank_0_alone_passes_and_comes_back(tmp_path):
    """(huggingface/text-generation-inference#1036) Rank 0 alone has the bias: right, and no loss."""
    model = mlp(tmp_path)
    ranks = model.cut(2)
    assert [rank["down.bias"].tolist() for rank in ranks] == [[10, 20], [0, 0]]
    back = load(tmp_path / "model-tp2-merged" / "model.safetensors")
    assert back["down.bias"].tolist() == [10, 20]


def test_a_row_bias_on_every_rank_does_not_verify(tmp_path):
    """(Wenyueh/MinivLLM#80) Rank 1's bias written back as rank 0's is found, by hash and by content."""
    model = mlp(tmp_path)
    ranks = model.cut(2)
    save(rank_path(model.out(2), 1, 2), {**ranks[1], "down.bias": ranks[0]["down.bias"]})
    run = tpspec("verify", model.out(2))
    assert run.status == 1
    assert "model-rank-00001-of-00002.safetensors" in run.out + run.err


def neox(tmp_path):
    """A small Pythia: 4 heads of width 2, one layer."""
    config = {
        "model_type": "gpt_neox",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 16,
        "vocab_size": 16,
    }
    block = {
        **linear("attention.query_key_value", 24, 8),
        **linear("attention.dense", 8, 8),
        **linear("mlp.dense_h_to_4h", 16, 8),
        **linear("mlp.dense_4h_to_h", 8, 16),
        **norm("input_layernorm", 8),
        **norm("post_attention_layernorm", 8),
    }
    shapes = {
        "gpt_neox.embed_in.weight": (16, 8),
        **repeated("gpt_neox.layers", 1, block),
        **norm("gpt_neox.final_layer_norm", 8),
        "embed_out.weight": (16, 8),
    }
    return checkpoint(tmp_path / "model", config, shapes)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("module", ["attention.dense", "mlp.dense_4h_to_h"])
def test_the_row_biases_of_pythia_count_once_in_the_sum(tmp_path, module, tp):
    """(EleutherAI/gpt-neox#1220) A split that repeats them has to divide them by tp; ours sum as they are."""
    model = neox(tmp_path)
    name = f"gpt_neox.layers.0.{module}"
    weight, bias = model.tensors[f"{name}.weight"], model.tensors[f"{name}.bias"]
    x = np.arange(weight.shape[1], dtype=np.float32)
    np.testing.assert_array_equal(summed(model.cut(tp), name, x), weight @ x + bias)


def test_biases_of_queries_are_cut_and_those_of_copied_kv_heads_copied(tmp_path):
    """(SqueezeBits/Torch-TRTLLM#39) Qwen2's biases were left whole beside cut weights."""
    config = llama_config(model_type="qwen2", num_attention_heads=4, num_key_value_heads=2, hidden_size=64)
    attention = "model.layers.0.self_attn"
    shapes = {
        **llama_shapes(config),
        f"{attention}.k_proj.bias": (32,),
        f"{attention}.v_proj.bias": (32,),
    }
    given = {f"{attention}.q_proj.bias": np.arange(64, dtype=np.float32)}
    model = checkpoint(tmp_path / "model", config, shapes, given=given)
    ranks = model.cut(4)
    assert ranks[1][f"{attention}.q_proj.bias"].tolist() == list(range(16, 32))
    for name in ("k_proj", "v_proj"):
        for parameter in ("weight", "bias"):
            found = model.held(ranks, f"{attention}.{name}.{parameter}", names("k", 2), 16)
            assert found == ["k0", "k0", "k1", "k1"]


def test_the_output_bias_of_experts_counts_once_in_their_weighted_sum(tmp_path):
    """(pytorch/torchtitan#4245) On every rank, gpt-oss's down_proj_bias is added tp times."""
    config = llama_config(model_type="gpt_oss", head_dim=2, intermediate_size=4, num_local_experts=2)
    shapes = {name: shape for name, shape in llama_shapes(config).items() if ".mlp." not in name}
    layer = "model.layers.0"
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shapes[f"{layer}.self_attn.{name}.bias"] = shapes[f"{layer}.self_attn.{name}.weight"][:1]
    experts = f"{layer}.mlp.experts"
    shapes |= {
        f"{layer}.self_attn.sinks": (8,),
        **linear(f"{layer}.mlp.router", 2, 16),
        f"{experts}.gate_up_proj": (2, 16, 8),
        f"{experts}.gate_up_proj_bias": (2, 8),
        f"{experts}.down_proj": (2, 4, 16),
        f"{experts}.down_proj_bias": (2, 16),
    }
    model = checkpoint(tmp_path / "model", config, shapes)
    ranks = model.cut(2)
    p, x = np.array([0.25, 0.75]), np.arange(8.0).reshape(2, 4)
    down, bias = f"{experts}.down_proj", f"{experts}.down_proj_bias"

    def routed(arrays, x):
        return sum(p[e] * (x[e] @ arrays[down][e] + arrays[bias][e]) for e in range(2))

    whole = routed(model.tensors, x)
    np.testing.assert_array_equal(routed(ranks[0], x[:, :2]) + routed(ranks[1], x[:, 2:]), whole)
    assert not ranks[1][bias].any()
    pairs = " ".join(f"g{i} u{i}" for i in range(4))
    for name, dim in (("gate_up_proj", 2), ("gate_up_proj_bias", 1)):
        found = model.held(ranks, f"{experts}.{name}", pairs, dim=dim)
        assert found == ["g0 u0 g1 u1", "g2 u2 g3 u3"]
