"""Small checkpoints of the model classes that specs/engines names, as transformers saves them, described.

    python tests/engines/random_models.py vllm|sglang [MODEL ...]

A process of its own makes them, for vLLM replaces modules of transformers.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_checkpoints import describe
from rounded_gptq import MODULES
from transformers import AutoModelForCausalLM

from tpspec.language.yaml_source import read_document
from tpspec.runtime.tiny import tiny_config

MODELS = Path(__file__).with_name("tiny_models.yaml")

BLOCK = GROUP = 32
QUANTIZED = re.compile(r"_proj(_with_mqa)?\.weight$")
Tensors = dict[str, list[Any]]
"""Name → dtype and shape."""
Form = tuple[Callable[[str, list[int]], Tensors], dict[str, Any]]
"""What is stored of a matrix of a name and a shape, and the settings that say so."""
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
    if not quantized:
        return saved
    if quantized.startswith("int"):
        form = integers(quantized)
    else:
        form = packed(quantized) if quantized in ("gptq", "awq") else fp8(quantized)
    parts, settings = form
    tensors: Tensors = {}
    for key, held in saved["tensors"].items():
        tensors |= parts(key, held[1:]) if QUANTIZED.search(key) else {key: held}
    return {"config": saved["config"] | {"quantization_config": settings}, "tensors": tensors}


def fp8(scales: str) -> Form:
    """FP8, with scales per block, channel or tensor."""

    def parts(name: str, shape: list[int]) -> Tensors:
        scale = {
            "block": ["F32", *(-(-size // BLOCK) for size in shape)],
            "channel": ["F32", shape[0], 1],
            "tensor": ["F32"],
            "compressed tensor": ["F32", 1],
        }
        inverse = "_inv" if scales == "block" else ""
        return {name: ["F8_E4M3", *shape], f"{name}_scale{inverse}": scale[scales]}

    plain = [f"model.layers.{layer}.mlp.gate" for layer in range(2)]
    own: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    own["modules_to_not_convert"] = ["lm_head", *plain]
    if scales == "block":
        own["weight_block_size"] = [BLOCK, BLOCK]
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
    return parts, own if scales in ("block", "tensor") else compressed


def integers(kind: str) -> Form:
    """What compressed-tensors stores of integers, int4 packed."""
    bits, group = int(kind[3]), GROUP if "group" in kind else None
    packed, zeros = bits < 8, "zeros" in kind

    def parts(name: str, shape: list[int]) -> Tensors:
        (rows, columns), pack = shape, 32 // bits
        groups = columns // group if group else 1
        found: Tensors = {name: ["I8", *shape]}
        if packed:
            found = {f"{name}_packed": ["I32", rows, columns // pack]}
        found[f"{name}_scale"] = ["BF16" if packed else "F32", rows, groups]
        if zeros:
            found[f"{name}_zero_point"] = ["I32", rows // pack, groups]
        if packed:
            found[f"{name}_shape"] = ["I64", 2]
        return found

    weights = {"num_bits": bits, "type": "int", "symmetric": not zeros, "dynamic": False}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized" if packed else "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None if packed else inputs,
            }
        },
    }
    return parts, settings


def packed(method: str) -> Form:
    """4 bits as GPTQ or AWQ packs them, [in, out]."""

    def parts(name: str, shape: list[int]) -> Tensors:
        (out, into), module = shape, name.removesuffix(".weight")
        found: Tensors = {
            f"{module}.qweight": ["I32", into // 8, out] if method == "gptq" else ["I32", into, out // 8],
            f"{module}.qzeros": ["I32", into // GROUP, out // 8],
            f"{module}.scales": ["BF16", into // GROUP, out],
        }
        if method == "gptq":
            found[f"{module}.g_idx"] = ["I32", into]
        return found

    settings: dict[str, Any] = {"quant_method": method, "bits": 4, "group_size": GROUP}
    settings |= (
        {"desc_act": False, "sym": True, "modules_in_block_to_quantize": [MODULES]}
        if method == "gptq"
        else {"zero_point": True, "version": "gemm"}
    )
    return parts, settings


if __name__ == "__main__":
    engine, *names = sys.argv[1:]
    taken = [name for name, values in models().items() if engine in values.get("engines", [engine])]
    print(json.dumps({name: described(name) for name in names or taken}))
