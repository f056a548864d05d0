"""Quantized weights, cut: a rank computes from its part what the whole weight's part is, to the bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import quantizers
import torch
from quantizers import Quantizer
from safetensors.torch import load_file, save_file
from torch import Tensor

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.readers import PreshardedReader
from tpspec.converters.sources import open_source
from tpspec.errors import TpspecError
from tpspec.language.registry import spec_from_file
from tpspec.layout import TensorLayout
from tpspec.presharded import Presharded
from tpspec.quantization import detect_format
from tpspec.quantized_modules import quantized_modules
from tpspec.resolution import Resolution
from tpspec.resolve import resolve
from tpspec.runtime.dequantized_file import FAMILIES, DequantizedFile
from tpspec.runtime.rank_file import RankFile

HIDDEN, FFN, HEADS, KV, WIDTH, EXPERTS = 64, 256, 8, 2, 32, 2
CONFIG = {
    "model_type": "all_cuts",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_experts": EXPERTS,
}
SPEC = f"""
spec: 1
architecture: all_cuts
model_types: [all_cuts]
ranges: {{expert: num_experts}}
hidden: hidden_size
axes:
  q:   {{units: num_attention_heads, width: {WIDTH}}}
  kv:  {{units: num_key_value_heads, width: {WIDTH}, replicate: true, groups: q}}
  ffn: {{units: intermediate_size}}
modules:
  q:       {{qkv-head: q}}
  k:       {{qkv-head: kv}}
  qkv:     {{qkv-head: [q, kv, kv]}}
  grouped: {{qkv-head: [q, kv, kv], interleaved: kv}}
  o:       {{row: q}}
  up:      {{column: ffn}}
  gate_up: {{merged: [ffn, ffn]}}
  turns:   {{merged: [ffn, ffn], interleaved: ffn}}
  down:    {{row: ffn}}
  turned:  {{column: ffn, layout: in-out}}
  back:    {{row: ffn, layout: in-out}}
  a_proj:  {{replicated: [64, hidden_size]}}
  experts.{{expert}}.w1: {{column: ffn}}
  experts.{{expert}}.w2: {{row: ffn}}
  router:  {{replicated: [num_experts, hidden_size]}}
STACKED
"""
STACKED = """
  stack.up:   {merged: [ffn, ffn], dims: [expert, out, in]}
  stack.down: {row: ffn, dims: [expert, in, out]}
"""
QKV = (HEADS + 2 * KV) * WIDTH
MATRICES = {
    "q": (HEADS * WIDTH, HIDDEN),
    "k": (KV * WIDTH, HIDDEN),
    "qkv": (QKV, HIDDEN),
    "grouped": (QKV, HIDDEN),
    "o": (HIDDEN, HEADS * WIDTH),
    "up": (FFN, HIDDEN),
    "gate_up": (2 * FFN, HIDDEN),
    "turns": (2 * FFN, HIDDEN),
    "down": (HIDDEN, FFN),
    "turned": (FFN, HIDDEN),
    "back": (HIDDEN, FFN),
    "a_proj": (64, HIDDEN),
    **{f"experts.{expert}.w1": (FFN, HIDDEN) for expert in range(EXPERTS)},
    **{f"experts.{expert}.w2": (HIDDEN, FFN) for expert in range(EXPERTS)},
}


def packed(**weights: object) -> Quantizer:
    return quantizers.compressed("pack-quantized", **weights)


def float8(**weights: object) -> Quantizer:
    return quantizers.compressed("float-quantized", num_bits=8, type="float", **weights)


def int8(form: str, **weights: object) -> Quantizer:
    return quantizers.compressed(form, num_bits=8, strategy="channel", **weights)


MADE = {
    "gptq": lambda: quantizers.gptq(4),
    "gptq-act-order": lambda: quantizers.gptq(4, ordered=True),
    "gptq-3-bit": lambda: quantizers.gptq(3),
    "gptq-8-bit-v2": lambda: quantizers.gptq(8, version="gptq_v2"),
    "gptq-one-group": lambda: quantizers.gptq(4, group=-1),
    "awq": quantizers.awq,
    "fp8-block": lambda: quantizers.fp8("block"),
    "fp8-channel": lambda: quantizers.fp8("channel", name="weight_scale"),
    "fp8-tensor": lambda: quantizers.fp8("tensor", name="weight_scale"),
    "mxfp4": quantizers.mxfp4,
    "modelopt-nvfp4": quantizers.modelopt,
    "modelopt-fp8": lambda: replace(
        quantizers.fp8("tensor", name="weight_scale"),
        settings={"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
    "bitsandbytes-8-bit": quantizers.bitsandbytes,
    "int8-group": lambda: quantizers.compressed("int-quantized", num_bits=8, strategy="group", group_size=32),
    "int4-group": lambda: packed(num_bits=4, strategy="group", group_size=32),
    "int4-zeros": lambda: packed(num_bits=4, strategy="group", group_size=32, symmetric=False),
    "int4-act-order": lambda: quantizers.reordered(4),
    "int8-packed-channel": lambda: packed(num_bits=8, strategy="channel"),
    "int4-channel-zeros": lambda: packed(num_bits=4, strategy="channel", symmetric=False),
    "int8": lambda: int8("int-quantized"),
    "int8-zeros": lambda: quantizers.compressed(
        "naive-quantized", num_bits=8, strategy="channel", symmetric=False
    ),
    "float8-tensor": lambda: quantizers.compressed(
        "float-quantized", num_bits=8, type="float", strategy="tensor"
    ),
    "float8-channel": lambda: quantizers.compressed(
        "float-quantized", num_bits=8, type="float", strategy="channel"
    ),
    "float8-block": lambda: float8(strategy="block", block_structure=[32, 32]),
    "nvfp4": lambda: quantizers.compressed(
        "nvfp4-pack-quantized",
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        scale_dtype=torch.float8_e4m3fn,
    ),
    "mxfp4-packed": lambda: quantizers.compressed(
        "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32
    ),
}
OF_COMPRESSED_TENSORS = ("int", "float", "nvfp4", "mxfp4-packed")


def quantizer(name: str) -> Quantizer:
    if name.startswith(OF_COMPRESSED_TENSORS):
        pytest.importorskip("compressed_tensors")
    torch.manual_seed(0)
    return MADE[name]()


def write(folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object] | None = None) -> Path:
    folder.mkdir()
    config = {**CONFIG, **({"quantization_config": settings} if settings else {})}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def made(tmp_path: Path, by: Quantizer) -> tuple[Path, Path, Path]:
    """A spec with every cut, a quantized checkpoint, and the same as its format's library reads it."""
    spec = tmp_path / "all_cuts.yaml"
    spec.write_text(SPEC.replace("STACKED", STACKED if by.stacks else ""))
    stored, plain = {"router.weight": torch.randn(EXPERTS, HIDDEN)}, {}
    for name, shape in MATRICES.items():
        parts, whole = by.quantize(torch.randn(shape))
        if name in ("turned", "back"):
            whole = whole.t().contiguous()
            parts |= {"weight": parts["weight"].t().contiguous()} if "weight" in parts else {}
        plain[f"{name}.weight"] = whole
        stored |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    if by.stacks:
        for name, shape in (("stack.up", (2 * FFN, HIDDEN)), ("stack.down", (HIDDEN, FFN))):
            parts, whole = by.stacked(torch.randn(EXPERTS, *shape))
            if name == "stack.down":
                whole = whole.transpose(1, 2).contiguous()
                parts |= {"weight": parts["weight"].transpose(1, 2).contiguous()} if "weight" in parts else {}
            plain[name] = whole
            stored |= {
                name + part.removeprefix("weight"): t
                for part, t in parts.items()
                if part.startswith("weight")
            }
    plain["router.weight"] = stored["router.weight"]
    return spec, write(tmp_path / "quantized", stored, by.settings), write(tmp_path / "plain", plain)


def taken(whole: Tensor, tensor: TensorLayout, rank: int) -> Tensor:
    """A rank's part by the plain checkpoint's layout alone."""
    dim = tensor.cut.dim
    if dim is None:
        return whole
    return torch.cat([whole.narrow(dim, source, length) for source, length in tensor.cut.shares[rank]], dim)


def dequantized(out: Path, resolution: Resolution, tp: int, dtype: torch.dtype) -> Iterator[DequantizedFile]:
    presharded = Presharded.open(out)
    for rank in range(tp):
        file = RankFile(presharded.check_rank(rank, tp))
        yield DequantizedFile(file, quantized_modules(resolution), (), dtype)


@pytest.mark.parametrize("name", MADE)
def test_each_rank_computes_its_part_of_the_dequantized_weights_and_merging_gives_the_bytes_back(
    name: str, tmp_path: Path
) -> None:
    """Cut by column, row, head with copies, fused, interleaved, merged, expert and stack, at tp 2, 4, 8."""
    by = quantizer(name)
    spec_file, quantized, plain = made(tmp_path, by)
    spec = spec_from_file(spec_file)
    checkpoint, whole = open_checkpoint(quantized), load_file(plain / "model.safetensors")
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors)
    unquantized = resolve(spec, CONFIG, open_checkpoint(plain).tensors)
    for tp in (2, 4, 8):
        out = tmp_path / f"tp{tp}"
        convert(open_source(str(quantized)), out, resolution.layout(tp))
        layout = unquantized.layout(tp)
        for rank, file in enumerate(dequantized(out, resolution, tp, by.dtype)):
            assert set(file.names) == set(whole)
            for weight in whole:
                found, expected = file.tensor(weight), taken(whole[weight], layout.tensors[weight], rank)
                assert torch.equal(found, expected), f"{weight} of rank {rank} at tp {tp}"
    merge(PreshardedReader(Presharded.open(tmp_path / "tp8")), tmp_path / "back")
    merged = (tmp_path / "back" / "model.safetensors").read_bytes()
    assert merged == (quantized / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["gptq-act-order", "int4-act-order"])
@pytest.mark.parametrize("wrong", [99, -1])
def test_an_input_of_a_group_that_is_none_is_an_error(name: str, wrong: int) -> None:
    by = quantizer(name)
    stored = detect_format({"quantization_config": dict(by.settings)}).usual
    tensors, _ = by.quantize(torch.randn(64, 256))
    (index,) = (part for part in tensors if part.endswith("g_idx"))
    tensors[index][3] = wrong
    with pytest.raises(TpspecError, match=rf"{index}\[3\] is {wrong}, and the groups are 0 to 7"):
        FAMILIES[stored.values](stored, tensors)


def test_inputs_in_no_order_are_an_error_where_the_config_says_that_they_are_in_order() -> None:
    tensors, _ = quantizer("gptq-act-order").quantize(torch.randn(64, 256))
    stored = detect_format({"quantization_config": dict(quantizer("gptq").settings)}).usual
    with pytest.raises(TpspecError, match="inputs belong to groups in no order"):
        FAMILIES[stored.values](stored, tensors)
