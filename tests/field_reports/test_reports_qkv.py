"""Fused query, key and value matrices: each layout cut in whole heads, none by default."""

from __future__ import annotations

import pytest
from tiny_checkpoints import checkpoint, linear, names, norm, repeated
from tiny_decoders import llama_config, llama_shapes

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
    assert (
        "attn.c_attn.weight: shape [24, 8] has 24 in dimension 0, but config.json makes it 8 (4 × 2" in said
    )


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


def test_bloom_is_cut_head_by_head(tmp_path):
    """(deepspeedai/DeepSpeed#3844) The built-in spec knows BLOOM's layout."""
    config = {"model_type": "bloom", "hidden_size": 8, "n_head": 4, "n_layer": 1, "vocab_size": 16}
    block = {
        **norm("input_layernorm", 8),
        **linear("self_attention.query_key_value", 24, 8),
        **linear("self_attention.dense", 8, 8),
        **norm("post_attention_layernorm", 8),
        **linear("mlp.dense_h_to_4h", 32, 8),
        **linear("mlp.dense_4h_to_h", 8, 32),
    }
    shapes = {
        "word_embeddings.weight": (16, 8),
        **norm("word_embeddings_layernorm", 8),
        **repeated("h", 1, block),
        **norm("ln_f", 8),
    }
    model = checkpoint(tmp_path / "model", config, shapes)
    ranks = model.cut(2)
    units = " ".join(f"q{i} k{i} v{i}" for i in range(4))
    for parameter in ("weight", "bias"):
        found = model.held(ranks, f"h.0.self_attention.query_key_value.{parameter}", units, 2)
        assert found == ["q0 k0 v0 q1 k1 v1", "q2 k2 v2 q3 k3 v3"]


FALCON = "transformer.h.0.self_attention.query_key_value"


def falcon(tmp_path, rows=24, **values):
    """A small Falcon-40B: 8 heads of width 2 in groups, one layer."""
    config = {
        "model_type": "falcon",
        "hidden_size": 16,
        "num_attention_heads": 8,
        "num_hidden_layers": 1,
        "vocab_size": 16,
        "new_decoder_architecture": True,
        **values,
    }
    block = {
        "self_attention.query_key_value.weight": (rows, 16),
        "self_attention.dense.weight": (16, 16),
        "mlp.dense_h_to_4h.weight": (64, 16),
        "mlp.dense_4h_to_h.weight": (16, 64),
        **norm("ln_attn", 16),
        **norm("ln_mlp", 16),
    }
    shapes = {
        "transformer.word_embeddings.weight": (16, 16),
        **repeated("transformer.h", 1, block),
        **norm("transformer.ln_f", 16),
    }
    return checkpoint(tmp_path / "model", config, shapes)


@pytest.mark.parametrize("key", ["num_kv_heads", "n_head_kv"])
def test_falcon_is_cut_by_groups_under_either_key_of_its_kv_heads(tmp_path, key):
    """(deepspeedai/DeepSpeed#4654) The KV count moved from n_head_kv to num_kv_heads."""
    model = falcon(tmp_path, **{key: 2})
    units = "q0 q1 q2 q3 k0 v0 q4 q5 q6 q7 k1 v1"
    found = model.held(model.cut(2), f"{FALCON}.weight", units, 2)
    assert found == ["q0 q1 q2 q3 k0 v0", "q4 q5 q6 q7 k1 v1"]


def test_falcon_without_a_count_of_kv_heads_does_not_become_multi_head(tmp_path):
    """(deepspeedai/DeepSpeed#4654) A key that is missing is no default of one KV head per query head."""
    said = falcon(tmp_path).refusal(2)
    assert f"{FALCON}.weight: config.json has no num_kv_heads or n_head_kv" in said


def test_falcon_7b_copies_its_one_kv_head_to_every_rank(tmp_path):
    """(predibase/lorax#120) [all queries | k | v]: a cut into equal pieces gives rank 0 queries alone."""
    old = {"multi_query": True, "new_decoder_architecture": False, "num_ln_in_parallel_attn": 2}
    model = falcon(tmp_path, rows=20, **old)
    found = model.held(model.cut(4), f"{FALCON}.weight", f"{names('q', 8)} k0 v0", 2)
    assert found == ["q0 q1 k0 v0", "q2 q3 k0 v0", "q4 q5 k0 v0", "q6 q7 k0 v0"]


def test_a_model_with_both_kinds_of_fused_matrices_is_cut_part_by_part(tmp_path):
    """(NVIDIA-NeMo/Automodel#1324) Phi-3 fuses q, k, v as well as gate, up; both were cut as one column."""
    config = llama_config(model_type="phi3", num_key_value_heads=4, intermediate_size=4)
    shapes = {
        name: shape
        for name, shape in llama_shapes(config).items()
        if not any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
    }
    qkv, gate_up = "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"
    model = checkpoint(tmp_path / "model", config, {**shapes, qkv: (32, 16), gate_up: (8, 16)})
    ranks = model.cut(2)
    assert model.held(ranks, qkv, f"{names('q', 8)} {names('k v', 4)}", 2) == [
        "q0 q1 q2 q3 k0 k1 v0 v1",
        "q4 q5 q6 q7 k2 k3 v2 v3",
    ]
    assert model.held(ranks, gate_up, names("g u", 4)) == ["g0 g1 u0 u1", "g2 g3 u2 u3"]
