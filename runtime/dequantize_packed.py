"""Integers that compressed-tensors packs along the inputs, zero points along the outputs, all unsigned."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tpspec.runtime.dequantize_scaled import spread, unpack
from tpspec.stored import Stored


def dequantize_packed(stored: Stored, tensors: Mapping[str, Tensor]) -> Tensor:
    """(weight - zero point) × scale in float32, [..., out, in]."""
    bits, packed = stored.numbers["bits"], tensors["weight_packed"]
    ordered = tensors.get("weight_g_idx")
    numbers = unpack(packed, bits, -1)
    if "weight_shape" in tensors:
        # The whole matrix's: where it ends within an int32, no cut goes along the inputs.
        numbers = numbers[..., : min(int(tensors["weight_shape"].flatten()[-1]), numbers.shape[-1])]
    weight: Tensor = (numbers - (1 << bits - 1)).float()
    if "weight_zero_point" in tensors:
        zeros = tensors["weight_zero_point"]
        if stored.parameters["weight_zero_point"].dimensions:
            zeros = unpack(zeros, bits, -2)[..., : weight.shape[-2], :] - (1 << bits - 1)
            zeros = spread(stored, "weight_scale", zeros, weight, ordered)
        weight = weight - zeros
    scale = spread(stored, "weight_scale", tensors["weight_scale"].float(), weight, ordered)
    return weight * scale
