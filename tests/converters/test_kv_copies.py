"""Beyond its KV heads a model is cut all the same: the heads are copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_checkpoints import checkpoint, repeated

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 176,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}
BLOCK = {
    "self_attn.q_proj.weight": (64, 64),
    "self_attn.k_proj.weight": (32, 64),
    "self_attn.v_proj.weight": (32, 64),
    "self_attn.o_proj.weight": (64, 64),
    "mlp.gate_proj.weight": (176, 64),
    "mlp.up_proj.weight": (176, 64),
    "mlp.down_proj.weight": (64, 176),
    "input_layernorm.weight": (64,),
    "post_attention_layernorm.weight": (64,),
}


def test_8_heads_and_4_kv_heads_go_to_tp_8(tmp_path: Path) -> None:
    shapes = {"model.embed_tokens.weight": (512, 64), "model.norm.weight": (64,)}
    llama = checkpoint(tmp_path / "llama", CONFIG, shapes | repeated("model.layers", 2, BLOCK))
    ranks = llama.cut(8)  # verified, and merged into the same bytes
    for layer in range(2):
        for name in ("k_proj", "v_proj"):
            key = f"model.layers.{layer}.self_attn.{name}.weight"
            for rank, tensors in enumerate(ranks):
                head = rank // 2
                np.testing.assert_array_equal(tensors[key], llama.tensors[key][8 * head : 8 * head + 8])
        assert {rank[f"model.layers.{layer}.mlp.up_proj.weight"].shape for rank in ranks} == {(22, 64)}
        assert {rank[f"model.layers.{layer}.mlp.down_proj.weight"].shape for rank in ranks} == {(64, 22)}
