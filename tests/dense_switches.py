"""Variants of the dense and the classic decoders' tiny models, by spec and name, as `Variant` takes them."""

from __future__ import annotations

from typing import Any

_TOWERS = {f"{tower}.norm.weight": (8,) for tower in ("vision_tower", "multi_modal_projector")}
_INNER_TOWERS = {f"model.{name}": shape for name, shape in _TOWERS.items()}
_INNER = ("model.", "model.language_model.")
_WRAPPED = {
    "published": {"renamed": ("model.", "language_model.model."), "extra": _TOWERS},
    "wrapped": {"renamed": _INNER, "extra": _INNER_TOWERS},
}

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
    "biogpt": {"untied": {"config": {"tie_word_embeddings": False}}},
    "xglm": {
        "untied": {"config": {"tie_word_embeddings": False}},
        "published": {"extra": {"model.embed_positions.weights": (66, 64)}},
    },
    "ctrl": {"untied": {"config": {"tie_word_embeddings": False}}},
    "openai-gpt": {
        "untied": {"config": {"tie_word_embeddings": False}},
        "published": {"renamed": ("transformer.", ""), "extra": {"h.0.attn.bias": (1, 1)}},
    },
    "gpt_neox_japanese": {"untied": {"config": {"tie_word_embeddings": False}}},
    "modernbert-decoder": {
        "untied": {"config": {"tie_word_embeddings": False, "decoder_bias": False, "norm_bias": False}},
    },
    "cohere_compass_text": {
        "untied": {"config": {"tie_word_embeddings": False, "attention_bias": True}},
        "wrapped": {"renamed": _INNER, "extra": {**_INNER_TOWERS, "model.visual.norm.weight": (8,)}},
    },
    "vaultgemma": {"untied": {"config": {"tie_word_embeddings": False}}},
    "hyperclovax": {"plain": {"config": {"use_post_norm": False, "attention_bias": False}}},
    "jais2": {"plain": {"config": {"attention_bias": False, "mlp_bias": False}}},
    "diffllama": {"tied": {"config": {"attention_bias": False, "tie_word_embeddings": True}}},
    "bitnet": {"plain": {"config": {"attention_bias": False, "tie_word_embeddings": True}}},
    "doge": {
        "experts": {
            "config": {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 2, "attention_bias": False}
        },
    },
    "persimmon": {
        "plain": {"config": {"qk_layernorm": False, "tie_word_embeddings": True}},
        "published": {
            "renamed": ("model.", "language_model.model."),
            "extra": {"vision_embed_tokens.weight": (64, 12), "vision_embed_tokens.bias": (64,)},
        },
        "wrapped": {"renamed": _INNER, "extra": {"model.vision_embed_tokens.weight": (64, 12)}},
    },
    "gemma3_text": {"untied": {"config": {"tie_word_embeddings": False}}, **_WRAPPED},
    "got_ocr2": {"untied": {"config": {"tie_word_embeddings": False}}, **_WRAPPED},
    "moss_transcribe_diarize": {
        "untied": {"config": {"tie_word_embeddings": False}},
        "wrapped": {
            "renamed": _INNER,
            "extra": {
                f"model.{tower}.norm.weight": (8,) for tower in ("audio_tower", "multi_modal_projector")
            },
        },
    },
    "emu3": {
        "published": {"renamed": ("model.", "text_model.model."), "extra": {"vqmodel.norm.weight": (8,)}},
        "wrapped": {"renamed": ("model.", "model.text_model."), "extra": {"model.vqmodel.norm.weight": (8,)}},
    },
    "mllama": {
        "published": {
            "renamed": ("model.", "language_model.model."),
            "extra": {f"{tower}.norm.weight": (8,) for tower in ("vision_model", "multi_modal_projector")},
        },
        "wrapped": {
            "renamed": _INNER,
            "extra": {
                f"model.{tower}.norm.weight": (8,) for tower in ("vision_model", "multi_modal_projector")
            },
        },
    },
    "phi4_multimodal": {
        "adapters": {
            "respelled": {
                f".{name}_proj.": f".{name}_proj.base_layer." for name in ("qkv", "o", "gate_up", "down")
            },
            "extra": {
                f"model.layers.0.{module}_proj.lora_{side}.{kind}.weight": (4, 4)
                for module in ("self_attn.qkv", "self_attn.o", "mlp.gate_up", "mlp.down")
                for side in "AB"
                for kind in ("speech", "vision")
            },
        },
    },
}
