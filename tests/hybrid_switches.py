"""Variants of hybrids, linear-attention models and newer multimodal ones: switches, published forms."""

from __future__ import annotations

from typing import Any

_TEXT = ("model.", "model.language_model.")
_REUSED_KEYS = {
    "model.language_model.layers.2.self_attn.k_proj.weight": (64, 64),
    "model.language_model.layers.2.self_attn.v_proj.weight": (64, 64),
    "model.language_model.layers.3.self_attn.k_norm.weight": (16,),
}


def _tower(*names: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (8, 8) for name in names}


_VISUAL = _tower("model.visual.blocks.0.attn.proj", "mtp.layers.0.mlp.gate")
_SOUND = _tower("model.embed_vision.embedding_projection", "model.embed_audio.embedding_projection")
_TOWERS = _SOUND | _tower("model.vision_tower.layers.0.mlp.fc1", "model.audio_tower.layers.0.fc1")

HYBRID: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3_5_text": {"published": {"model_type": "qwen3_5", "renamed": _TEXT, "extra": _VISUAL}},
    "qwen3_5_moe_text": {
        "published": {
            "model_type": "qwen3_5_moe",
            "renamed": _TEXT,
            "extra": _VISUAL,
            "unconverted": True,
        }
    },
    "qwen3_next": {"published": {"extra": _tower("mtp.fc")}},
    "qwen4_exp_text": {
        "published": {"model_type": "qwen4_exp", "renamed": _TEXT, "extra": _VISUAL},
        "forgets": {"config": {"ple_layer_ids": []}, "unconverted": True},
    },
    "gemma4_text": {
        "published": {"model_type": "gemma4", "renamed": _TEXT, "extra": _TOWERS | _REUSED_KEYS},
        "plain": {
            "config": {
                "global_head_dim": 16,
                "enable_moe_block": False,
                "hidden_size_per_layer_input": 0,
                "attention_k_eq_v": False,
                "num_kv_shared_layers": 0,
                "tie_word_embeddings": False,
            }
        },
    },
    "gemma3n_text": {
        "published": {"model_type": "gemma3n", "renamed": _TEXT, "extra": _TOWERS | _REUSED_KEYS},
        "untied": {"config": {"tie_word_embeddings": False}},
    },
    "gemma4_unified_text": {
        "untied": {"config": {"tie_word_embeddings": False}},
        "published": {
            "model_type": "gemma4_unified",
            "renamed": _TEXT,
            "extra": _SOUND | _REUSED_KEYS | _tower("model.vision_embedder.patch_dense"),
        },
    },
    "kimi_linear": {
        "published": {
            "config": {"q_lora_rank": None, "attention_bias": False, "tie_word_embeddings": True},
            "respelled": {"0.block_sparse_moe.": "0.mlp."},
        }
    },
    "jamba": {"dense": {"config": {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False}}},
    "falcon_h1": {
        "gated-first": {"config": {"mamba_norm_before_gate": False, "mamba_n_groups": 2}},
        "plain": {"config": {"mamba_rms_norm": False, "projectors_bias": False, "mamba_d_ssm": None}},
    },
    "granitemoehybrid": {
        "dense": {"config": {"num_local_experts": 0, "mamba_proj_bias": True, "attention_bias": True}}
    },
    "lfm2": {
        "plain": {
            "config": {"conv_bias": False, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False}
        }
    },
    "lfm2_moe": {
        "plain": {"config": {"use_expert_bias": False, "conv_bias": False, "tie_word_embeddings": False}}
    },
    "lfm3": {
        "plain": {
            "config": {"use_attention_gate": False, "use_sandwich_norm": False, "tie_word_embeddings": False}
        }
    },
    "mamba": {
        "untied": {"config": {"tie_word_embeddings": False, "use_bias": False, "use_conv_bias": False}}
    },
    "recurrent_gemma": {"untied": {"config": {"tie_word_embeddings": False, "attention_bias": True}}},
    "bailing_hybrid": {
        "published": {
            "config": {"attention_bias": False, "tie_word_embeddings": True},
            "extra": _tower("model.layers.3.eh_proj"),
        }
    },
    "zamba2": {
        "two-blocks": {
            "config": {"num_mem_blocks": 2, "layers_block_type": ["hybrid", "linear_attention", "hybrid"]}
        },
        "plain": {
            "config": {
                "use_shared_attention_adapter": False,
                "num_key_value_heads": 4,
                "mamba_ngroups": 1,
                "tie_word_embeddings": False,
            }
        },
    },
    "rwkv": {"tied": {"config": {"tie_word_embeddings": True, "attention_hidden_size": None}}},
    "zamba": {"untied": {"config": {"tie_word_embeddings": False, "mamba_proj_bias": False}}},
    "xlstm": {
        "tied": {"config": {"use_bias": False, "tie_word_embeddings": True}},
        "narrow": {"config": {"hidden_size": 64}},
    },
    "minimax": {"tied": {"config": {"tie_word_embeddings": True}}},
}
