"""MXFP4 and NVFP4: two FP4 numbers (E2M1) to a byte, the first in the low half, a scale per group of inputs.

Sources: the OCP Microscaling Formats specification 1.0; for what the scales are called, ModelOpt's and
compressed-tensors' checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tpspec.stored import Stored

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
EXPONENT_BIAS = 127
"""MX scales are powers of two, stored as exponents with this bias."""


def dequantize_fp4(stored: Stored, tensors: Mapping[str, Tensor]) -> Tensor:
    """Value × scale in float32, [..., out, in].

    ModelOpt's scale for the whole is multiplied with, compressed-tensors' divided by.
    """
    name = next(name for name in ("weight", "weight_packed", "weight_blocks") if name in tensors)
    packed = tensors[name].flatten(-2) if name == "weight_blocks" else tensors[name]
    halves = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    values = torch.tensor(VALUES)[halves.long()]
    scales = _exact(tensors["weight_scales" if name == "weight_blocks" else "weight_scale"])
    if "weight_scale_2" in tensors:
        scales = scales * _over(tensors["weight_scale_2"], scales)
    if "weight_global_scale" in tensors:
        scales = scales / _over(tensors["weight_global_scale"], scales)
    return values * scales.repeat_interleave(stored.numbers["group"], -1)[..., : values.shape[-1]]


def _over(whole: Tensor, scales: Tensor) -> Tensor:
    """A scale for each stacked matrix, as it broadcasts against those of the groups."""
    return whole.reshape(*scales.shape[:-2], 1, 1)


def _exact(scales: Tensor) -> Tensor:
    if scales.dtype == torch.uint8:
        return torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - EXPONENT_BIAS)
    return scales.float()
