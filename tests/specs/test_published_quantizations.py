"""Quantized checkpoints as they are published: the tp sizes at which no group, block or pack is cut.

The sizes are those of the published configs, with what the quantized models' own configs say beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpspec.config import read_config
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
AWQ = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ = {
    "bits": 4,
    "block_name_to_quantize": None,
    "dataset": None,
    "desc_act": False,
    "group_size": 128,
    "modules_in_block_to_quantize": None,
    "quant_method": "gptq",
    "sym": True,
    "true_sequential": True,
}
FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
MXFP4 = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """What llm-compressor writes."""
    symmetric = {"symmetric": True, "dynamic": False, "actorder": None, "block_structure": None}
    group = {"targets": ["Linear"], "weights": {**symmetric, **weights}}
    said = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**said, "config_groups": {"group_0": group}}


MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "exclude_modules": ["lm_head"],
}
W4A16 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=128)
W8A8 = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
FP8_DYNAMIC = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
TO_8, TO_16, TO_32 = ((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32))

PUBLISHED: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    # name: the model, its settings, other sizes, and the sizes that work
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": (
        "Llama-3.1-8B",
        AWQ,
        {},
        TO_16,
    ),  # 14336 = 16 × 7 × 128
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("Llama-3.1-8B", W4A16, {}, TO_16),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("Llama-3.1-8B", W8A8, {}, TO_32),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic": ("Llama-3.1-8B", FP8_DYNAMIC, {}, TO_32),
    "nvidia/Llama-3.1-8B-Instruct-FP4": ("Llama-3.1-8B", MODELOPT, {}, TO_32),  # groups of 16
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": ("Qwen2.5-7B", GPTQ, {}, (1, 2, 4)),  # 18944 = 4 × 37 × 128
    "Qwen2.5-72B, quantized as it is": ("Qwen2.5-72B", GPTQ, {}, (1,)),  # 29568 = 231 × 128
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": ("Qwen2.5-72B", GPTQ, {"intermediate_size": 29696}, TO_8),
    "Qwen/Qwen3-8B-FP8": ("Qwen3-8B", FP8, {}, TO_32),
    "Qwen/Qwen3-30B-A3B-FP8": ("Qwen3-30B-A3B", FP8, {}, (1, 2)),  # 768 = 6 × 128
    "Qwen/Qwen3-235B-A22B-FP8": ("Qwen3-235B-A22B", FP8, {}, (1, 2, 4)),  # 1536 = 12 × 128
    "openai/gpt-oss-20b": ("gpt-oss-20b", MXFP4, {}, (1, 2)),  # 2880 = 90 × 32
}


def published(name: str) -> Resolution:
    model, settings, sizes, _ = PUBLISHED[name]
    config = {**read_config(CONFIGS / f"{model}.json"), **sizes, "quantization_config": settings}
    return resolve(choose_spec(config), config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_quantization_is_cut_at_these_tp_sizes_and_no_others(name: str):
    resolution = published(name)
    assert resolution.findings == ()
    assert resolution.valid_tp == PUBLISHED[name][-1]


@pytest.mark.parametrize(
    ("name", "tp", "module", "numbers"),
    [
        (
            "Qwen2.5-72B, quantized as it is",
            2,
            "model.layers.0-79.mlp.down_proj.qzeros",
            "row ffn, quantization group = 128: 14784 % 128 = 64",
        ),
        (
            "Qwen/Qwen3-30B-A3B-FP8",
            4,
            "model.layers.0-47.mlp.experts.0-127.down_proj.weight_scale_inv",
            "row moe, quantization block = 128: 192 % 128 = 64",
        ),
        (
            "openai/gpt-oss-20b",
            4,
            "model.layers.0-23.mlp.experts.down_proj_blocks",
            "row ffn, quantization group = 32: 720 % 32 = 16",
        ),
    ],
)
def test_a_size_that_does_not_work_names_the_tensor_its_group_and_the_numbers(
    name: str, tp: int, module: str, numbers: str
):
    found = {m.module: f"{m.tag}, {m.source} = {m.units}: {m.numbers}" for m in published(name).misfits(tp)}
    assert found[module] == numbers


def test_the_matrices_of_gpt_oss_have_the_shapes_that_its_files_have():
    shared = published("openai/gpt-oss-20b").shared
    tensors = {item.tensor.name: item.tensor for item in shared if item.tensor}
    experts = "model.layers.{layer}.mlp.experts"
    assert {name: (t.dtype, t.shape) for name, t in tensors.items() if name.startswith(f"{experts}.")} == {
        f"{experts}.gate_up_proj_blocks": ("U8", (32, 5760, 90, 16)),
        f"{experts}.gate_up_proj_scales": ("U8", (32, 5760, 90)),
        f"{experts}.gate_up_proj_bias": ("BF16", (32, 5760)),
        f"{experts}.down_proj_blocks": ("U8", (32, 2880, 90, 16)),
        f"{experts}.down_proj_scales": ("U8", (32, 2880, 90)),
        f"{experts}.down_proj_bias": ("BF16", (32, 2880)),
    }
    assert tensors["model.layers.{layer}.self_attn.o_proj"].dtype == "BF16"
