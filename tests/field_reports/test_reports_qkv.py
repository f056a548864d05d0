"""Fused query, key and value matrices: each layout cut in whole heads, none by default."""

from __future__ import annotations

import pytest
from tiny_checkpoints import checkpoint, llama_config, llama_shapes, names

ATTENTION = """
let: {num_key_value_heads: num_key_value_heads or num_attention_heads}
hidden: hidden_size
axes:
  q:  {units: num_attention_heads, width: head_dim}
  kv: {units: num_key_value_heads, width: head_dim, replicate: true, groups: q}
modules:
"""
FUSED, BIAS, PROJECTION = "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"


def attention(tmp_path, rule, *, heads=4, kv=4, width=2, hidden=8, rows=None, projection="{row: q}"):
    """One attention block with a fused matrix under `rule`."""
    config = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv}
    shapes = {
        FUSED: (rows or (heads + 2 * kv) * width, hidden),
        BIAS: (rows or (heads + 2 * kv) * width,),
        PROJECTION: (hidden, heads * width),
    }
    spec = f"{ATTENTION}  attn.c_attn: {rule}\n  attn.c_proj: {projection}\n"
    return checkpoint(tmp_path / "model", {**config, "head_dim": width}, shapes, spec=spec)


def fused(model, tp, units, width=2):
    """The units of each rank's fused matrix; its bias has to hold the same."""
    ranks = model.cut(tp)
    found = model.held(ranks, FUSED, units, width)
    assert model.held(ranks, BIAS, units, width) == found
    return found


def test_a_fused_matrix_of_stacked_parts_is_cut_part_by_part(tmp_path):
    """(predibase/lorax#120) Cut as one block, rank 0 of two gets all queries and no value."""
    model = attention(tmp_path, "{qkv-head: [q, kv, kv]}")
    assert fused(model, 2, names("q k v", 4)) == ["q0 q1 k0 k1 v0 v1", "q2 q3 k2 k3 v2 v3"]


def test_a_fused_matrix_stored_head_by_head_is_cut_between_heads(tmp_path):
    """(deepspeedai/DeepSpeed#3844) BLOOM stores q, k, v of one head after another, as GPT-NeoX does."""
    units = " ".join(f"q{i} k{i} v{i}" for i in range(4))
    model = attention(tmp_path, "{qkv-head: [q, q, q], interleaved: q}")
    assert fused(model, 2, units) == ["q0 k0 v0 q1 k1 v1", "q2 k2 v2 q3 k3 v3"]


def test_a_fused_matrix_of_blocks_is_cut_within_each_block(tmp_path):
    """(deepspeedai/DeepSpeed#3844) CodeGen stores four blocks, each of its own heads' q, then v, then k."""
    config = {"n_embd": 16, "n_head": 8}
    units = " ".join(f"{kind}{2 * block + i}" for block in range(4) for kind in "qvk" for i in range(2))
    shapes = {"attn.qkv_proj.weight": (48, 16), "attn.out_proj.weight": (16, 16)}
    spec = """
hidden: n_embd
axes: {q: {units: n_head // 4, width: n_embd // n_head}}
modules:
  attn.qkv_proj: {qkv-head: [q, q, q], blocks: 4}
  attn.out_proj: {row: q, blocks: 4}
"""
    model = checkpoint(tmp_path / "model", config, shapes, spec=spec)
    ranks = model.cut(2)
    assert model.held(ranks, "attn.qkv_proj.weight", units, 2) == [
        "q0 v0 k0 q2 v2 k2 q4 v4 k4 q6 v6 k6",
        "q1 v1 k1 q3 v3 k3 q5 v5 k5 q7 v7 k7",
    ]
    columns = model.held(ranks, "attn.out_proj.weight", names("q", 8), 2, dim=1)
    assert columns == ["q0 q2 q4 q6", "q1 q3 q5 q7"]
    assert "n_head // 4 = 2: 2 % 4 = 2" in model.refusal(4)


def test_a_fused_matrix_that_no_rule_names_is_an_error_not_cut_somehow(tmp_path):
    """(deepspeedai/DeepSpeed#3844) GLM's fused layout was unknown, and cut in equal pieces without a word."""
    config = llama_config(num_key_value_heads=8)
    shapes = llama_shapes(config)
    for part in "qkv":
        del shapes[f"model.layers.0.self_attn.{part}_proj.weight"]
    name = "model.layers.0.self_attn.query_key_value.weight"
    model = checkpoint(tmp_path / "model", config, {**shapes, name: (48, 16)})
    said = model.refusal(2)
    assert f"{name}: no rule of specs/llama.yaml names this tensor, shape [48, 16]" in said
    for part in "qkv":
        assert f"model.layers.0.self_attn.{part}_proj: is not in the checkpoint" in said


@pytest.mark.parametrize("rule", ["{column: q}", "{qkv-head: q}"])
def test_a_fused_matrix_under_a_rule_for_queries_alone_is_an_error(tmp_path, rule):
    """(deepspeedai/DeepSpeed#3844) 24 rows of q, k and v are not the 8 of the queries."""
    said = attention(tmp_path, rule).refusal(2)
    assert "attn.c_attn.weight: shape [24, 8] has 24 in dimension 0, but config.json makes it 8 (4 × 2" in said


def test_a_bias_of_grouped_heads_need_not_be_divisible_by_three(tmp_path):
    """(NVIDIA/TensorRT-LLM#1589) 4 heads and 2 KV heads of width 2 have a bias of 16, not 3 equal parts."""
    model = attention(tmp_path, "{qkv-head: [q, kv, kv]}", kv=2)
    assert model.tensors[BIAS].shape == (16,)
    expected = ["q0 q1 k0 v0", "q2 q3 k1 v1"]
    assert fused(model, 2, f"{names('q', 4)} {names('k v', 2)}") == expected


def test_heads_wider_than_the_hidden_size_are_cut_by_the_projection(tmp_path):
    """(vllm-project/vllm#27570) A vision tower of hidden 20 projects to 24: cut by 20, parts overlap."""
    model = attention(tmp_path, "{qkv-head: [q, q, q]}", width=6, hidden=20)
    assert fused(model, 2, names("q k v", 4), 6) == ["q0 q1 k0 k1 v0 v1", "q2 q3 k2 k3 v2 v3"]


def test_groups_stored_one_after_another_are_cut_between_groups(tmp_path):
    """(deepspeedai/DeepSpeed#4654) InternLM2 and Falcon-40B store a group's queries, then its k and its v."""
    units = "q0 q1 q2 q3 k0 v0 q4 q5 q6 q7 k1 v1"
    model = attention(tmp_path, "{qkv-head: [q, kv, kv], interleaved: kv}", heads=8, kv=2)
    assert fused(model, 2, units) == ["q0 q1 q2 q3 k0 v0", "q4 q5 q6 q7 k1 v1"]
    copied = ["q0 q1 k0 v0", "q2 q3 k0 v0", "q4 q5 k1 v1", "q6 q7 k1 v1"]
    assert fused(model, 4, units) == copied
