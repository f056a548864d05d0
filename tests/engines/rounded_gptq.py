"""Llamas in GPTQ's form, their weights rounded to the nearest: for engines that have kernels for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantizers import stream
from safetensors.torch import load_file, save_file

GROUP = 64
MODULES = [
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
]
"""What is quantized of each layer."""


def in_gptq(source: Path, out: Path) -> Path:
    """A checkpoint with its layers' matrices rounded to 16 multiples of their group's scale."""
    out.mkdir()
    stored: dict[str, torch.Tensor] = {}
    for path in source.glob("*.safetensors"):
        for name, weight in load_file(path).items():
            if ".layers." in name and weight.dim() == 2:
                module = name.removesuffix(".weight")
                stored |= {f"{module}.{part}": tensor for part, tensor in rounded(weight).items()}
            else:
                stored[name] = weight.half()
    save_file(stored, out / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    settings: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
    }
    settings["modules_in_block_to_quantize"] = [MODULES]
    config |= {"dtype": "float16", "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config))
    for path in source.glob("tokenizer*"):
        (out / path.name).write_bytes(path.read_bytes())
    return out


def rounded(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """GPTQ's tensors for a matrix: numbers around 8, their zero point stored as 7."""
    inputs = weight.float().t().unflatten(0, (-1, GROUP))
    scales = (inputs.abs().amax(1) / 7).clamp(min=1e-6).half()
    numbers = (inputs / scales.float()[:, None]).round().clamp(-8, 7).flatten(0, 1).int() + 8
    return {
        "qweight": stream(numbers.numpy(), 4, 0),
        "qzeros": stream(np.full(scales.shape, 7), 4, 1),
        "scales": scales,
        "g_idx": (torch.arange(len(numbers)) // GROUP).int(),
    }
