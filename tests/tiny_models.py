"""Tiny random models of every built-in spec, as transformers builds and saves them.

A spec's `tiny` values make the smallest model that uses all it describes; the variants here turn its
switches one by one, and add what only published checkpoints have (old buffers, other prefixes,
layers for multi-token prediction).
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dense_switches import DENSE
from hybrid_switches import HYBRID
from moe_switches import MOE

from tpspec.checkpoint import Checkpoint, open_checkpoint
from tpspec.language.registry import BUILT_IN, spec_named
from tpspec.language.spec import Spec


@dataclass(frozen=True, eq=False)
class Variant:
    """One tiny model of a spec. `config` changes `tiny`; None as a value stands in the config.

    `renamed` replaces the start of stored names and `respelled` pieces of them, `extra` adds stored
    tensors by shape, `fp8` stores the layers' matrices in FP8 with a scale per block of that size,
    and with `shard_size` the checkpoint has several files. With `whole` the multimodal model is saved,
    and its tensors whose names begin so are kept; with `unconverted` tensors are stored as they lie in
    memory.
    """

    spec_name: str
    name: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    renamed: tuple[str, str] | None = None
    respelled: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fp8: int = 0
    shard_size: str = "1GB"
    whole: str = ""
    unconverted: bool = False

    def __str__(self) -> str:
        return f"{self.spec_name}-{self.name}"

    @property
    def spec(self) -> Spec:
        return spec_named(self.spec_name)

    @property
    def folder(self) -> Path:
        """The checkpoint, written at first use."""
        return _save(self)

    @property
    def checkpoint(self) -> Checkpoint:
        return _open(self)


LEGACY = {"RefinedWeb", "RefinedWebModel", "kimi_k2", "phi4mm"}
"""Model types of published configs that transformers does not have."""
SPEC_NAMES = tuple(path.stem for path in sorted(BUILT_IN.glob("*.yaml")))

_OLD_BUFFERS = {f"h.{layer}.attn.{name}": (1, 1) for layer in range(2) for name in ("bias", "masked_bias")}
_MTP = {
    "model.layers.3.enorm.weight": (64,),
    "model.layers.3.eh_proj.weight": (64, 128),
    "model.layers.3.self_attn.o_proj.weight": (64, 160),
    "model.layers.3.mlp.experts.0.up_proj.weight": (24, 64),
}
FALCON_RW = {
    "new_decoder_architecture": False,
    "num_kv_heads": None,
    "multi_query": False,
    "parallel_attn": False,
    "alibi": True,
    "bias": True,
}
_SWITCHES: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "tied": {"config": {"tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}},
        "files": {"shard_size": "40KB", "extra": {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,)}},
    },
    "internlm3": {"biases": {"config": {"attention_bias": True, "mlp_bias": True}}},
    "smollm3": {"untied": {"config": {"tie_word_embeddings": False}}},
    "qwen2": {"tied": {"config": {"tie_word_embeddings": True, "use_sliding_window": False}}},
    "qwen3": {"plain": {"config": {"attention_bias": False}}},
    "mistral": {"whole": {"config": {"sliding_window": None, "head_dim": None}}},
    "phi3": {"tied": {"config": {"tie_word_embeddings": True, "num_key_value_heads": 8}}},
    "olmo2": {"plain": {"config": {"attention_bias": False}}},
    "gemma2": {"untied": {"config": {"tie_word_embeddings": False}}},
    "gpt2": {
        "published": {"renamed": ("transformer.", ""), "extra": _OLD_BUFFERS},
        "untied": {"config": {"tie_word_embeddings": False, "n_inner": None}},
    },
    "gpt_neox": {
        "sequential": {"config": {"use_parallel_residual": False}},
        "plain": {"config": {"attention_bias": False, "tie_word_embeddings": True}},
    },
    "bloom": {
        "published": {"renamed": ("transformer.", "")},
        "untied": {"config": {"tie_word_embeddings": False}},
    },
    "falcon": {
        "one-norm": {"config": {"num_ln_in_parallel_attn": 1, "bias": True}},
        "untied": {"config": {"tie_word_embeddings": False}},
        "multi-query": {"config": {"new_decoder_architecture": False, "num_kv_heads": None}},
        "rw": {"config": FALCON_RW},
    },
    "mixtral": {"files": {"shard_size": "60KB"}},
    "deepseek_v3": {
        "no-q-lora": {"config": {"q_lora_rank": None, "tie_word_embeddings": True}},
        "published": {"extra": _MTP},
        "fp8": {"fp8": 4, "config": {"intermediate_size": 128, "moe_intermediate_size": 32}},
        "no-prefix": {
            "renamed": ("model.", ""),
            "extra": {k.removeprefix("model."): v for k, v in _MTP.items()},
        },
    },
    "gpt_oss": {"plain": {"config": {"attention_bias": False}}},
    "mamba2": {"biases": {"config": {"n_groups": 1, "use_bias": True, "tie_word_embeddings": True}}},
    "bamba": {
        "biases": {
            "config": {
                "mamba_n_groups": 1,
                "mamba_proj_bias": True,
                "mamba_conv_bias": False,
                "attention_bias": True,
                "mlp_bias": True,
                "tie_word_embeddings": True,
            }
        }
    },
    "nemotron_h": {
        "plain": {
            "config": {"moe_latent_size": None, "mlp_bias": False, "use_bias": True, "n_groups": 8},
            "extra": {"mtp.layers.0.norm.weight": (64,)},
        }
    },
}


def _variants() -> tuple[Variant, ...]:
    variants = []
    for name in SPEC_NAMES:
        spec = spec_named(name)
        if not (spec.model_types and spec.tiny):
            continue  # a base of others, or an architecture whose code is not in transformers
        first, *others = spec.model_types
        variants.append(Variant(name, "tiny", first))
        variants += [
            Variant(name, model_type, model_type) for model_type in others if model_type not in LEGACY
        ]
        switches = (_SWITCHES | DENSE | MOE | HYBRID).get(name, {})
        variants += [
            Variant(name, switch, **{"model_type": first, **how}) for switch, how in switches.items()
        ]
    return tuple(variants)


VARIANTS = _variants()
CORE = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2", "gpt_neox", "bloom", "falcon", "mixtral"),
    *("qwen3_moe", "olmo2", "gemma2", "deepseek_v3", "gpt_oss", "bamba", "nemotron_h"),
)
"""Specs that between them use the whole language; what is slow and shows nothing new elsewhere uses these."""


def variants_of(spec_name: str) -> tuple[Variant, ...]:
    """All variants of one spec."""
    return tuple(variant for variant in VARIANTS if variant.spec_name == spec_name)


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="tiny-models-"))
    atexit.register(shutil.rmtree, root)
    return root


@cache
def _open(variant: Variant) -> Checkpoint:
    return open_checkpoint(variant.folder)


@cache
def _save(variant: Variant) -> Path:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    from tpspec.runtime.building import text_model_config
    from tpspec.runtime.tiny import tiny_config

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    values = {**variant.spec.tiny, **variant.config}
    config = tiny_config(variant.model_type, values)
    text = text_model_config(config) if variant.spec.model_class == "text" else config
    if variant.whole:
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    else:
        model = AutoModelForCausalLM.from_config(text, dtype=torch.bfloat16)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point():
            # Bare vectors (A_log, sinks, score corrections) are often kept in float32.
            bare = name.rpartition(".")[2] not in ("weight", "bias") and tensor.dim() == 1
            tensor.data = torch.randn(tensor.shape, dtype=torch.float32 if bare else torch.bfloat16)
    folder = _root() / str(variant)
    model.save_pretrained(folder, max_shard_size=variant.shard_size)
    if variant.spec.model_class == "text":
        config.save_pretrained(folder)
    if variant.unconverted:
        save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    if variant.extra or variant.renamed or variant.respelled or variant.fp8 or variant.whole:
        _rewrite(folder, variant)
    return folder


def _rewrite(folder: Path, variant: Variant) -> None:
    """What only published checkpoints have, put into the first file."""
    import torch
    from safetensors.torch import load_file, save_file

    first = min(folder.glob("*.safetensors"))
    tensors = {k: v for k, v in load_file(first).items() if k.startswith(variant.whole)}
    if variant.renamed:
        old, new = variant.renamed
        tensors = {new + k.removeprefix(old) if k.startswith(old) else k: v for k, v in tensors.items()}
    for old, new in variant.respelled.items():
        tensors = {k.replace(old, new): v for k, v in tensors.items()}
    if variant.fp8:
        tensors |= _quantized(tensors, variant.fp8)
        block = {"quant_method": "fp8", "weight_block_size": [variant.fp8, variant.fp8]}
        _edit(folder / "config.json", lambda config: config.update(quantization_config=block))
    tensors |= {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in variant.extra.items()}
    save_file(tensors, first, {"format": "pt"})
    for path in folder.glob("*.index.json"):
        _edit(path, lambda index: index["weight_map"].update(dict.fromkeys(variant.extra, first.name)))


def _quantized(tensors: Mapping[str, Any], block: int) -> dict[str, Any]:
    """The layers' projections as FP8 numbers, and the scales of their blocks."""
    import torch

    quantized = {}
    for name, tensor in tensors.items():
        if "_proj" in name and tensor.dim() == 2:
            blocks = [-(-size // block) for size in tensor.shape]
            quantized[name] = tensor.to(torch.float8_e4m3fn)
            quantized[f"{name}_scale_inv"] = torch.rand(blocks, dtype=torch.float32)
    return quantized


def _edit(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=2))
