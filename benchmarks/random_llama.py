"""Checkpoints of random weights that can be run: some 2 GB in bf16, with a tokenizer of one word per id."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from convert import CONFIG, write_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

RUNNABLE = CONFIG | {"max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": None}
MIXTRAL = {
    **RUNNABLE,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_hidden_layers": 6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""Of like size: 1.9 billion parameters in 6 layers of 8 experts."""


def write_llama(folder: Path) -> Path:
    """The Llama that the speed of converting is measured on, with weights of a size that models have."""
    write_model(folder, RUNNABLE, normal)
    write_tokenizer(folder, int(str(RUNNABLE["vocab_size"])))
    return folder


def write_mixtral(folder: Path) -> Path:
    """A Mixtral, an expert at a time as published ones are stored."""
    folder.mkdir()
    hidden, ffn, vocab = (int(str(MIXTRAL[k])) for k in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = hidden // int(str(MIXTRAL["num_attention_heads"])) * int(str(MIXTRAL["num_key_value_heads"]))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    experts = int(str(MIXTRAL["num_local_experts"]))
    for layer in range(int(str(MIXTRAL["num_hidden_layers"]))):
        of_layer = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "block_sparse_moe.gate": (experts, hidden),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for expert in range(experts):
            place = f"block_sparse_moe.experts.{expert}"
            of_layer |= {f"{place}.{w}": (ffn, hidden) for w in ("w1", "w3")}
            of_layer[f"{place}.w2"] = (hidden, ffn)
        shapes |= {f"model.layers.{layer}.{module}.weight": shape for module, shape in of_layer.items()}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    tensors = {
        name: torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02) for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(MIXTRAL, indent=2))
    write_tokenizer(folder, vocab)
    return folder


def normal(size: int) -> bytes:
    """`size` bytes of bf16 from a normal distribution."""
    values = torch.empty(size // 2, dtype=torch.bfloat16).normal_(std=0.02)
    return values.view(torch.uint8).numpy().tobytes()


def write_tokenizer(folder: Path, vocab: int) -> None:
    """One word for each id, so that any output has a text: `w7` is 7."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
