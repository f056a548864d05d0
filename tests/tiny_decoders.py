"""A small Llama, the plainest decoder, and a small DeepSeek-V3, by the names that their checkpoints have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tiny_checkpoints import Shapes, Tiny, checkpoint, repeated

LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 16,
    "tie_word_embeddings": False,
}


def llama_config(**values: object) -> dict[str, object]:
    """A small Llama's config; a value of None leaves the key out."""
    return {key: value for key, value in {**LLAMA, **values}.items() if value is not None}


def llama_shapes(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama with this config, as a checkpoint has them."""
    hidden, heads, ffn, vocab = (
        int(str(config[key]))
        for key in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    )
    width = int(str(config.get("head_dim") or hidden // heads))
    kv = int(str(config.get("num_key_value_heads") or heads))
    block = {
        "self_attn.q_proj.weight": (heads * width, hidden),
        "self_attn.k_proj.weight": (kv * width, hidden),
        "self_attn.v_proj.weight": (kv * width, hidden),
        "self_attn.o_proj.weight": (hidden, heads * width),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    shapes |= repeated("model.layers", int(str(config["num_hidden_layers"])), block)
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def llama(folder: Path, extra: Shapes | None = None, *, files: int = 1, **values: object) -> Tiny:
    """A small Llama, its config changed by `values`, with `extra` tensors."""
    config = llama_config(**values)
    return checkpoint(folder, config, {**llama_shapes(config), **(extra or {})}, files=files)


DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "first_k_dense_replace": 1,
    "intermediate_size": 8,
    "moe_intermediate_size": 8,
    "n_routed_experts": 2,
    "vocab_size": 16,
}


def deepseek(folder: Path, extra: Shapes | None = None, *, prefix: str = "model.", **values: object) -> Tiny:
    """A small DeepSeek-V3 of one dense layer, with `extra` tensors; the head alone has no prefix."""
    block = {
        "self_attn.q_a_proj.weight": (6, 16),
        "self_attn.q_a_layernorm.weight": (6,),
        "self_attn.q_b_proj.weight": (4 * 5, 6),
        "self_attn.kv_a_proj_with_mqa.weight": (5 + 2, 16),
        "self_attn.kv_a_layernorm.weight": (5,),
        "self_attn.kv_b_proj.weight": (4 * 7, 5),
        "self_attn.o_proj.weight": (16, 4 * 4),
        "mlp.gate_proj.weight": (8, 16),
        "mlp.up_proj.weight": (8, 16),
        "mlp.down_proj.weight": (16, 8),
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
    }
    shapes = {"embed_tokens.weight": (16, 16), **repeated("layers", 1, block), "norm.weight": (16,)}
    named = {f"{prefix}{name}": shape for name, shape in {**shapes, **(extra or {})}.items()}
    return checkpoint(folder, {**DEEPSEEK, **values}, {**named, "lm_head.weight": (16, 16)})
