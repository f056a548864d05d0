"""Checkpoints whose model code is not in transformers: cut by what each row is, merged, and not run."""

from __future__ import annotations

import pytest
from tiny_checkpoints import Tiny, checkpoint, repeated

from tpspec.errors import TpspecError
from tpspec.language.registry import spec_named

SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4, "num_hidden_layers": 2}


def internlm2(folder):
    layer = {
        "attention.wqkv.weight": (16, 8),
        "attention.wo.weight": (8, 8),
        "feed_forward.w1.weight": (12, 8),
        "feed_forward.w2.weight": (8, 12),
        "feed_forward.w3.weight": (12, 8),
        "attention_norm.weight": (8,),
        "ffn_norm.weight": (8,),
    }
    config = {**SIZES, "model_type": "internlm2", "vocab_size": 10, "num_key_value_heads": 2, "bias": False}
    ends = {"model.tok_embeddings.weight": (10, 8), "model.norm.weight": (8,), "output.weight": (10, 8)}
    return checkpoint(folder, config, {**ends, **repeated("model.layers", 2, layer)})


def baichuan(folder):
    layer = {
        "self_attn.W_pack.weight": (24, 8),
        "self_attn.o_proj.weight": (8, 8),
        "self_attn.rotary_emb.inv_freq": (1,),
        "mlp.gate_proj.weight": (12, 8),
        "mlp.up_proj.weight": (12, 8),
        "mlp.down_proj.weight": (8, 12),
        "input_layernorm.weight": (8,),
        "post_attention_layernorm.weight": (8,),
    }
    config = {**SIZES, "model_type": "baichuan", "vocab_size": 10, "tie_word_embeddings": False}
    ends = {"model.embed_tokens.weight": (10, 8), "model.norm.weight": (8,), "lm_head.weight": (10, 8)}
    return checkpoint(folder, config, {**ends, **repeated("model.layers", 2, layer)})


def chatglm(folder, *, multi_query=True):
    rows = 16 if multi_query else 24
    layer = {
        "self_attention.query_key_value.weight": (rows, 8),
        "self_attention.query_key_value.bias": (rows,),
        "self_attention.dense.weight": (8, 8),
        "mlp.dense_h_to_4h.weight": (24, 8),
        "mlp.dense_4h_to_h.weight": (8, 12),
        "input_layernorm.weight": (8,),
        "post_attention_layernorm.weight": (8,),
    }
    config = {
        "model_type": "chatglm",
        "hidden_size": 8,
        "ffn_hidden_size": 12,
        "num_attention_heads": 4,
        "num_layers": 2,
        "kv_channels": 2,
        "padded_vocab_size": 10,
        "add_qkv_bias": True,
        "multi_query_attention": multi_query,
        "multi_query_group_num": 2,
    }
    ends = {
        "transformer.embedding.word_embeddings.weight": (10, 8),
        "transformer.rotary_pos_emb.inv_freq": (1,),
        "transformer.encoder.final_layernorm.weight": (8,),
        "transformer.output_layer.weight": (10, 8),
    }
    return checkpoint(folder, config, {**ends, **repeated("transformer.encoder.layers", 2, layer)})


def qwen(folder):
    layer = {
        "attn.c_attn.weight": (24, 8),
        "attn.c_attn.bias": (24,),
        "attn.c_proj.weight": (8, 8),
        "mlp.w1.weight": (6, 8),
        "mlp.w2.weight": (6, 8),
        "mlp.c_proj.weight": (8, 6),
        "ln_1.weight": (8,),
        "ln_2.weight": (8,),
    }
    config = {**SIZES, "model_type": "qwen", "vocab_size": 10, "kv_channels": 2, "no_bias": True}
    ends = {
        "transformer.wte.weight": (10, 8),
        "transformer.ln_f.weight": (8,),
        "transformer.visual.proj": (3, 3),
        "lm_head.weight": (10, 8),
    }
    return checkpoint(folder, config, {**ends, **repeated("transformer.h", 2, layer)})


def per_head(folder):
    return chatglm(folder, multi_query=False)


STACKED = "q0 q1 q2 q3 k0 k1 k2 k3 v0 v1 v2 v3"


@pytest.mark.parametrize(
    ("make", "tensor", "units", "expected"),
    [
        (
            internlm2,
            "model.layers.1.attention.wqkv.weight",
            "q0 q1 k0 v0 q2 q3 k1 v1",
            ["q0 q1 k0 v0", "q2 q3 k1 v1"],
        ),
        (
            baichuan,
            "model.layers.1.self_attn.W_pack.weight",
            STACKED,
            ["q0 q1 k0 k1 v0 v1", "q2 q3 k2 k3 v2 v3"],
        ),
        (
            chatglm,
            "transformer.encoder.layers.1.self_attention.query_key_value.bias",
            "q0 q1 q2 q3 k0 k1 v0 v1",
            ["q0 q1 k0 v0", "q2 q3 k1 v1"],
        ),
        (
            per_head,
            "transformer.encoder.layers.1.self_attention.query_key_value.weight",
            "q0 k0 v0 q1 k1 v1 q2 k2 v2 q3 k3 v3",
            ["q0 k0 v0 q1 k1 v1", "q2 k2 v2 q3 k3 v3"],
        ),
        (qwen, "transformer.h.1.attn.c_attn.weight", STACKED, ["q0 q1 k0 k1 v0 v1", "q2 q3 k2 k3 v2 v3"]),
    ],
    ids=["internlm2", "baichuan", "chatglm", "chatglm-per-head", "qwen"],
)
def test_each_rank_has_its_own_heads_of_the_fused_matrix(tmp_path, make, tensor, units, expected):
    tiny: Tiny = make(tmp_path / "model")
    assert tiny.held(tiny.cut(2), tensor, units, 2) == expected


def test_a_rank_has_its_rows_of_gate_and_of_up(tmp_path):
    tiny = chatglm(tmp_path / "model")
    held = tiny.held(tiny.cut(2), "transformer.encoder.layers.0.mlp.dense_h_to_4h.weight", "g0 g1 u0 u1", 6)
    assert held == ["g0 u0", "g1 u1"]


def test_kv_heads_are_copied_once_there_are_more_ranks(tmp_path):
    tiny = internlm2(tmp_path / "model")
    held = tiny.held(tiny.cut(4), "model.layers.0.attention.wqkv.weight", "q0 q1 k0 v0 q2 q3 k1 v1", 2)
    assert held == ["q0 k0 v0", "q1 k0 v0", "q2 k1 v1", "q3 k1 v1"]


@pytest.mark.parametrize("make", [internlm2, baichuan, chatglm, qwen])
def test_running_says_that_the_code_must_come_from_elsewhere(tmp_path, make):
    from tpspec.runtime.building import read_model_config
    from tpspec.runtime.tiny import tiny_model

    tiny = make(tmp_path / "model")
    kind = make.__name__
    with pytest.raises(TpspecError, match=f"transformers has no code for '{kind}' models"):
        read_model_config(str(tiny.folder), text_only=False)
    with pytest.raises(TpspecError, match="no `tiny` values"):
        tiny_model(spec_named(kind))
