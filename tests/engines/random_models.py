"""Small checkpoints of the model classes that specs/engines names, as transformers saves them, described.

    python tests/engines/random_models.py vllm|sglang [MODEL ...]

A process of its own makes them, for vLLM replaces modules of transformers.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_checkpoints import describe
from transformers import AutoModelForCausalLM

from tpspec.language.yaml_source import read_document
from tpspec.runtime.tiny import tiny_config

MODELS = Path(__file__).with_name("tiny_models.yaml")

BLOCK = 32
QUANTIZED = re.compile(r"_proj(_with_mqa)?\.weight$")
IN_FLOAT32 = "e_score_correction_bias"
"""What published checkpoints in bf16 hold in float32."""


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Name → `type`, `engines`, `quantized` and the values of its config."""
    data = read_document(MODELS).data
    return {name: {**data["common"], **values} for name, values in data["models"].items()}


def described(name: str) -> dict[str, Any]:
    """A model's config and tensors, in bf16."""
    values = dict(models()[name])
    values.pop("engines", None)
    quantized = values.pop("quantized", None)
    config = tiny_config(values.pop("type"), {k: value for k, value in values.items() if value is not None})
    for key, value in values.items():
        if value is None:  # a class may not take what its own checkpoints say
            setattr(config, key, None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for key, tensor in model.state_dict(keep_vars=True).items():
        if key.endswith(IN_FLOAT32):
            tensor.data = tensor.data.float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = describe(Path(folder))
    return in_fp8(saved, quantized) if quantized else saved


def in_fp8(described: dict[str, Any], scales: str) -> dict[str, Any]:
    """The checkpoint with the layers' matrices in FP8, and their scales per block, channel or tensor."""
    tensors: dict[str, list[Any]] = {}
    for name, (dtype, *shape) in described["tensors"].items():
        if not QUANTIZED.search(name):
            tensors[name] = [dtype, *shape]
            continue
        tensors[name] = ["F8_E4M3", *shape]
        match scales:
            case "block":
                tensors[f"{name}_scale_inv"] = ["F32", *(-(-size // BLOCK) for size in shape)]
            case "channel":
                tensors[f"{name}_scale"] = ["F32", shape[0], 1]
            case "tensor":
                tensors[f"{name}_scale"] = ["F32"]
            case "compressed tensor":
                tensors[f"{name}_scale"] = ["F32", 1]
    plain = [f"model.layers.{layer}.mlp.gate" for layer in range(2)]
    fp8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    fp8["modules_to_not_convert"] = ["lm_head", *plain]
    if scales == "block":
        fp8["weight_block_size"] = [BLOCK, BLOCK]
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    compressed = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head", *plain],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": numbers | {"strategy": scales.removeprefix("compressed "), "dynamic": False},
                "input_activations": numbers
                | {"strategy": "token" if scales == "channel" else "tensor", "dynamic": True},
            }
        },
    }
    settings = fp8 if scales in ("block", "tensor") else compressed
    return {"config": described["config"] | {"quantization_config": settings}, "tensors": tensors}


if __name__ == "__main__":
    engine, *names = sys.argv[1:]
    taken = [name for name, values in models().items() if engine in values.get("engines", [engine])]
    print(json.dumps({name: described(name) for name in names or taken}))
