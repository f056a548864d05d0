"""Weights as the formats' own libraries store them, with what those libraries read out of them again.

compressed-tensors quantizes itself. GPTQ's, AWQ's and ModelOpt's libraries need a GPU or torch builds of
their own: their packing is written here from their documentation, number by number and not as the
runtime does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

GROUP = 32
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Quantizer:
    """`settings` are config.json's; `quantize` gives a weight's tensors and the weight that they stand for.

    `stacks`: stacked experts are stored so, too. `dtype` is what the library rounds weights to.
    """

    name: str
    settings: Mapping[str, Any]
    quantize: Callable[[Tensor], tuple[Parts, Tensor]]
    stacks: bool = False
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return self.name

    def stacked(self, weight: Tensor) -> tuple[Parts, Tensor]:
        """A stack of matrices, each quantized on its own."""
        pairs = [self.quantize(matrix) for matrix in weight]
        parts = {name: torch.stack([each[name] for each, _ in pairs]) for name in pairs[0][0]}
        return parts, torch.stack([whole for _, whole in pairs])


def gptq(bits: int, *, ordered: bool = False, version: str = "gptq", group: int = GROUP) -> Quantizer:
    """GPTQ: w = scale × (q - zero); with activation order, each input names its group."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        generator = np.random.default_rng(weight.shape[0])
        out, into = weight.shape
        size = into if group == -1 else group
        groups = np.arange(into) // size
        if ordered:
            groups = generator.permutation(groups)
        scales = torch.from_numpy(generator.uniform(0.01, 0.1, (groups.max() + 1, out))).half()
        zeros = generator.integers(1, 1 << bits, scales.shape)
        numbers = generator.integers(0, 1 << bits, (into, out))
        stored_zeros = zeros - (version == "gptq")
        parts = {
            "qweight": stream(numbers, bits, 0),
            "qzeros": stream(stored_zeros, bits, 1),
            "scales": scales,
            "g_idx": torch.from_numpy(groups).int(),
        }
        difference = torch.from_numpy(numbers - zeros[groups]).float()
        return parts, (difference * scales.float()[groups]).t().contiguous()

    settings = {
        "bits": bits,
        "group_size": group,
        "desc_act": ordered,
        "sym": False,
        "checkpoint_format": version,
    }
    order = "-ordered" if ordered else ""
    return Quantizer(f"{version}-{bits}{order}-{group}", {"quant_method": "gptq", **settings}, quantize)


def stream(numbers: np.ndarray, bits: int, dim: int) -> Tensor:
    """Numbers of some bits in int32s along a dimension, one bit after another."""
    rows = numbers.T if dim else numbers
    words = np.zeros((rows.shape[0] * bits // 32, rows.shape[1]), np.uint32)
    for position, row in enumerate(rows):
        for bit in range(bits):
            word, shift = divmod(position * bits + bit, 32)
            words[word] |= (row >> bit & 1).astype(np.uint32) << np.uint32(shift)
    return torch.from_numpy((words.T if dim else words).copy().view(np.int32))


def awq() -> Quantizer:
    """AutoAWQ's gemm: of eight neighbouring columns, the even ones lie in the low half of an int32."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        generator = np.random.default_rng(weight.shape[0])
        out, into = weight.shape
        groups = np.arange(into) // GROUP
        scales = torch.from_numpy(generator.uniform(0.01, 0.1, (into // GROUP, out))).half()
        zeros = generator.integers(0, 16, scales.shape)
        numbers = generator.integers(0, 16, (into, out))
        parts = {"qweight": _awq_packed(numbers), "qzeros": _awq_packed(zeros), "scales": scales}
        difference = torch.from_numpy(numbers - zeros[groups]).float()
        return parts, (difference * scales.float()[groups]).t().contiguous()

    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    return Quantizer("awq", settings, quantize)


def _awq_packed(numbers: np.ndarray) -> Tensor:
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= numbers[:, column::8].astype(np.uint32) << np.uint32(4 * place)
    return torch.from_numpy(words.view(np.int32))


def fp8(kind: str, *, name: str = "weight_scale_inv") -> Quantizer:
    """FP8 with a scale per block, row or matrix."""
    shapes = {"block": (GROUP, GROUP), "channel": (1, None), "tensor": (None, None)}
    settings: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if kind == "block":
        settings["weight_block_size"] = [GROUP, GROUP]
    if kind == "channel":
        settings["quant_method"] = "fbgemm_fp8"

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        rows, columns = (size or whole for size, whole in zip(shapes[kind], weight.shape, strict=True))
        tiles = weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        scales = tiles.abs().amax((1, 3)) / 448
        over = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        numbers = (weight / over).to(torch.float8_e4m3fn)
        stored = scales.reshape(()) if kind == "tensor" else scales
        parts = {"weight": numbers, name: stored}
        if kind == "tensor":
            parts["input_scale"] = torch.tensor(0.5)
        return parts, numbers.float() * over

    return Quantizer(f"fp8-{kind}-{name}", settings, quantize, stacks=kind == "block")


def bitsandbytes() -> Quantizer:
    """8-bit rows, each with the maximum that 127 stands for."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        most = weight.abs().amax(1)
        numbers = (weight / most[:, None] * 127).round().to(torch.int8)
        parts = {"weight": numbers, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return parts, numbers.float() * (most / 127)[:, None]

    return Quantizer("bitsandbytes", {"quant_method": "bitsandbytes", "load_in_8bit": True}, quantize)


def fp4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random FP4 numbers: their bytes, the numbers themselves and their indices into a group."""
    generator = np.random.default_rng(weight.shape[0])
    codes = generator.integers(0, 16, tuple(weight.shape))
    values = np.array([*FP4, *(-value for value in FP4)], np.float32)[codes]
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return torch.from_numpy(packed), torch.from_numpy(values), torch.arange(weight.shape[1]) // group


def mxfp4() -> Quantizer:
    """gpt-oss: blocks of 32, each 16 bytes, and their exponents; read by transformers."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        packed, _, _ = fp4(weight, 32)
        scales = torch.randint(120, 130, (weight.shape[0], weight.shape[1] // 32), dtype=torch.uint8)
        blocks = packed.unflatten(1, (-1, 16))
        whole = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0]
        return {"weight_blocks": blocks, "weight_scales": scales}, whole.t().contiguous()

    return Quantizer("mxfp4", {"quant_method": "mxfp4"}, quantize, stacks=True)


def modelopt() -> Quantizer:
    """ModelOpt's NVFP4: an FP8 scale per 16 inputs and a float32 scale for the whole, both factors."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        packed, values, groups = fp4(weight, 16)
        scales = torch.rand(weight.shape[0], weight.shape[1] // 16).mul(400).to(torch.float8_e4m3fn)
        whole = torch.tensor(0.00123)
        parts = {
            "weight": packed,
            "weight_scale": scales,
            "weight_scale_2": whole,
            "input_scale": torch.tensor(0.5),
        }
        return parts, values * (scales.float() * whole)[:, groups]

    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return Quantizer("modelopt-nvfp4", settings, quantize, stacks=True)


def compressed(form: str, *, stacks: bool = True, **weights: Any) -> Quantizer:
    """compressed-tensors, by its own code."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStrategy
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    arguments = QuantizationArgs(**weights)
    inputs = (
        None if form == "pack-quantized" else QuantizationArgs(num_bits=8, type=arguments.type, dynamic=True)
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, input_activations=inputs)
    compressor = BaseCompressor.get_value_from_registry(form)
    strategy = QuantizationStrategy(arguments.strategy).value

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        weight = weight.float()
        state: Parts = {"weight": weight}
        least, most = _ranges(weight, strategy, arguments)
        whole = None
        if strategy == "tensor_group":
            whole = state["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
        scale, zeros = calculate_qparams(least, most, arguments, global_scale=whole)
        state |= {
            "weight_scale": scale.reshape(1) if strategy == "tensor" else scale,
            "weight_zero_point": zeros,
        }
        if strategy == "tensor":
            state["weight_zero_point"] = zeros.reshape(1)
        parts = compressor.compress(state, scheme)
        read = compressor.decompress(dict(parts), scheme)["weight"]
        return {name: tensor.contiguous() for name, tensor in parts.items()}, read

    settings = {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments.model_dump(mode="json")}},
    }
    shown = "-".join(str(value) for key, value in weights.items() if key != "scale_dtype")
    dtype = torch.bfloat16 if "fp4" in form else torch.float32
    return Quantizer(f"{form}-{shown}", settings, quantize, stacks, dtype)


def reordered(bits: int) -> Quantizer:
    """compressed-tensors with activation order, as llm-compressor once wrote it: inputs name their groups.

    The library reads such files no more, so its groups are taken, and the inputs strewn over them.
    """
    from compressed_tensors.compressors import pack_to_int32, unpack_from_int32

    plain = compressed("pack-quantized", num_bits=bits, strategy="group", group_size=GROUP)

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        order = torch.from_numpy(np.random.default_rng(1).permutation(weight.shape[1]))
        parts, whole = plain.quantize(weight)
        numbers = unpack_from_int32(parts["weight_packed"], bits, weight.shape)[:, order]
        parts["weight_packed"] = pack_to_int32(numbers.contiguous(), bits)
        parts["weight_g_idx"] = (order // GROUP).int()
        return parts, whole[:, order].contiguous()

    groups = plain.settings["config_groups"]["group_0"]
    changed = {"group_0": {**groups, "weights": {**groups["weights"], "actorder": "group"}}}
    return Quantizer("pack-quantized-ordered", {**plain.settings, "config_groups": changed}, quantize)


def _ranges(weight: Tensor, strategy: str, arguments: Any) -> tuple[Tensor, Tensor]:
    """The least and greatest values of what shares a scale."""
    if strategy in ("group", "tensor_group"):
        runs = weight.unflatten(1, (-1, arguments.group_size))
        return runs.amin(2), runs.amax(2)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if strategy == "block":
        rows, columns = arguments.block_structure
        tiles = weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        return tiles.amin((1, 3)), tiles.amax((1, 3))
    return weight.min(), weight.max()
