"""Variants of the tiny models with experts: switches turned, and what only published checkpoints have."""

from __future__ import annotations

from typing import Any


def _layer(prefix: str) -> dict[str, tuple[int, ...]]:
    """Tensors of a layer for multi-token prediction."""
    names = {"enorm": (64,), "eh_proj": (64, 128), "mlp.experts.0.up_proj": (24, 64)}
    return {f"{prefix}.{name}.weight": shape for name, shape in names.items()}


def _tower(*names: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (8, 8) for name in names}


MOE: dict[str, dict[str, dict[str, Any]]] = {
    "qwen2_moe": {
        "no-biases": {"config": {"qkv_bias": False, "decoder_sparse_step": 2, "mlp_only_layers": []}}
    },
    "glm4_moe": {
        "published": {"config": {"use_qk_norm": False}, "extra": _layer("model.layers.2")},
    },
    "llama4": {
        "published": {
            "config": {"interleave_moe_layer_step": 1},
            "renamed": ("", "language_model."),
            "extra": _tower("vision_model.patch_embedding", "multi_modal_projector.linear_1"),
        }
    },
    "phimoe": {"plain": {"config": {"attention_bias": False, "lm_head_bias": False}}},
    "granitemoe": {"tied": {"config": {"tie_word_embeddings": True}}},
    "granitemoeshared": {"routed": {"config": {"shared_intermediate_size": 0}}},
    "granitemoe_swa": {"routed": {"config": {"shared_intermediate_size": 0}}},
    "ernie4_5_moe": {
        "published": {
            "config": {"use_bias": False, "tie_word_embeddings": True},
            "extra": _tower(
                "model.mtp_block.0.mlp.up_proj",
                "model.mtp_linear_proj.0",
                "model.mtp_emb_norm.0",
                "model.mtp_hidden_norm.0",
            ),
        }
    },
    "exaone_moe": {"published": {"extra": _layer("mtp.layers.0")}},
    "mellum": {"published": {"extra": _layer("mtp.layers.0")}},
    "mimo_v2_flash": {"published": {"extra": _layer("model.mtp.layers.0")}},
    "hy_v3": {"published": {"config": {"mlp_bias": False}, "extra": _layer("model.layers.2")}},
    "deepseek_v2": {
        "lite": {
            "config": {
                "q_lora_rank": None,
                "attention_bias": False,
                "mlp_bias": False,
                "topk_method": "greedy",
                "n_group": None,
                "topk_group": None,
            },
        }
    },
    "youtu": {"no-q-lora": {"config": {"q_lora_rank": None, "tie_word_embeddings": False}}},
    "deepseek_v32": {"published": {"extra": _layer("model.layers.3")}},
    "glm_moe_dsa": {"published": {"config": {"indexer_types": None}, "extra": _layer("model.layers.3")}},
    "glm4_moe_lite": {
        "published": {"config": {"q_lora_rank": None}, "extra": _layer("model.layers.3")},
    },
    "axk1": {
        "published": {
            "extra": {"model.layers.0.post_mlp_layernorm.weight": (64,), **_layer("model.layers.3")}
        }
    },
    "axk2": {"published": {"extra": _layer("model.layers.3")}},
    "longcat_flash": {
        "published": {"config": {"attention_bias": False}, "extra": _layer("model.mtp.layers.0")},
    },
    "jetmoe": {"untied": {"config": {"tie_word_embeddings": False}}},
    "cohere2_moe": {
        "routed": {
            "config": {
                "num_shared_experts": 0,
                "tie_word_embeddings": False,
                "prefix_dense_intermediate_size": None,
            }
        }
    },
    "aria": {
        "published": {
            "config": {"mlp_bias": False},
            "renamed": ("", "language_model."),
            "extra": _tower("vision_tower.post_layernorm", "multi_modal_projector.layer_norm"),
        }
    },
    "laguna": {"by-element": {"config": {"gating": "per-element", "attention_bias": False}}},
    "hy_v4": {
        "published": {
            "respelled": {"mlp.linear_gate": "mlp.gate_proj", "experts.linear_gate": "experts.gate_proj"},
            "config": {"indexer_types": None},
            "extra": {"model.mtp_layers.0.enorm.weight": (64,)},
        }
    },
    "deepseek_v4": {
        "published": {
            "renamed": ("model.", ""),
            "respelled": {"embed_tokens": "embed", "hc_head.hc_": "hc_head_"},
            "extra": {"mtp.0.enorm.weight": (64,)},
        }
    },
    "inkling_text": {
        "padded": {
            "config": {"unpadded_vocab_size": None, "mlp_layer_types": ["dense", "dense"]},
            "extra": _layer("model.mtp.layers.0"),
        }
    },
    "dots3_note": {
        "published": {
            "extra": {
                **_layer("model.layers.3"),
                **_tower("vision_encoder.norm", "audio_encoder.norm", "audio_adapter.fc1", "model.mtp.norm"),
            }
        }
    },
    "zaya": {"untied": {"config": {"tie_word_embeddings": False, "lm_head_bias": True}}},
    "minimax_m3_vl_text": {
        "published": {
            "model_type": "minimax_m3_vl",
            "whole": "language_model.",
            "config": {
                "vision_config": {
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                }
            },
            "extra": _tower(
                "vision_tower.norm", "multi_modal_projector.linear_1", "patch_merge_mlp.linear_1", "mtp.norm"
            ),
        }
    },
}
