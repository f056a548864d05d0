"""Variants of the dense and the classic decoders' tiny models, by spec and name, as `Variant` takes them."""

from __future__ import annotations

from typing import Any

DENSE: dict[str, dict[str, dict[str, Any]]] = {
    "gemma": {"untied": {"config": {"tie_word_embeddings": False}}},
    "cohere": {"plain": {"config": {"use_qk_norm": False, "tie_word_embeddings": False}}},
    "cohere2": {"biases": {"config": {"attention_bias": True, "tie_word_embeddings": False}}},
    "phi": {"plain": {"config": {"qk_layernorm": False}}},
    "glm": {"plain": {"config": {"attention_bias": False}}},
    "starcoder2": {"plain": {"config": {"use_bias": False, "tie_word_embeddings": False}}},
    "stablelm": {
        "parallel": {"config": {"use_parallel_residual": True, "qk_layernorm": False, "use_qkv_bias": False}},
    },
    "nemotron": {"plain": {"config": {"attention_bias": False, "mlp_bias": False}}},
    "gptj": {"tied": {"config": {"tie_word_embeddings": True, "n_inner": None}}},
    "gpt_neo": {"untied": {"config": {"tie_word_embeddings": False, "intermediate_size": None}}},
    "opt": {
        "first-norms-after": {"config": {"do_layer_norm_before": False, "enable_bias": False}},
        "untied": {"config": {"tie_word_embeddings": False, "word_embed_proj_dim": 64}},
        "plain-norms": {"config": {"layer_norm_elementwise_affine": False, "word_embed_proj_dim": 64}},
        "published": {"renamed": ("model.decoder.", "decoder.")},
    },
    "gpt_bigcode": {
        "multi-head": {"config": {"multi_query": False, "n_inner": None, "tie_word_embeddings": False}},
        "published": {"extra": {f"transformer.h.{layer}.attn.bias": (1, 1) for layer in range(2)}},
    },
    "mpt": {"untied": {"config": {"tie_word_embeddings": False}}},
    "ernie4_5": {"plain": {"config": {"use_bias": False, "tie_word_embeddings": False}}},
    "hunyuan_v1_dense": {"plain": {"config": {"attention_bias": False, "tie_word_embeddings": True}}},
    "granite_swa": {"plain": {"config": {"attention_bias": False, "tie_word_embeddings": False}}},
    "arcee": {"plain": {"config": {"attention_bias": False, "mlp_bias": False}}},
    "minicpm3": {"no-q-lora": {"config": {"q_lora_rank": None, "tie_word_embeddings": False}}},
}
