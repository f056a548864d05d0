"""Integers and FP8 numbers that are multiplied with scales: one in all, or per row, group or block."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tpspec.errors import TpspecError
from tpspec.stored import Dimension, Stored

BITSANDBYTES_RANGE = 127.0
"""What bitsandbytes' row maxima (SCB) are the scale of."""


def dequantize_scaled(stored: Stored, tensors: Mapping[str, Tensor]) -> Tensor:
    """(weight - zero point) × scale in float32, [..., out, in]."""
    weight, ordered = tensors["weight"].float(), tensors.get("weight_g_idx")
    name = next(name for name in ("weight_scale", "weight_scale_inv", "SCB") if name in tensors)
    if "weight_zero_point" in tensors:
        weight = weight - spread(stored, "weight_zero_point", tensors["weight_zero_point"], weight, ordered)
    scale = spread(stored, name, tensors[name].float(), weight, ordered)
    return weight * (scale / BITSANDBYTES_RANGE if name == "SCB" else scale)


def spread(stored: Stored, name: str, scales: Tensor, like: Tensor, ordered: Tensor | None) -> Tensor:
    """Scales, each repeated over what it is the scale of, to broadcast against a weight [..., out, in].

    `ordered` names each input's group where groups are no runs of inputs.
    """
    rows, columns = like.shape[-2:]
    stacked = like.dim() - 2
    dimensions = stored.parameters[name].fitting(tuple(scales.shape[stacked:]))
    if scales[(0,) * stacked].numel() == 1:
        return scales.reshape(*scales.shape[:stacked], 1, 1)
    if len(dimensions) == 1:
        scales, dimensions = scales.unsqueeze(-1), (*dimensions, Dimension("1"))
    for dim, dimension, size in zip((-2, -1), dimensions, (rows, columns), strict=True):
        if dimension.whole and ordered is not None:
            scales = scales.index_select(dim, group_of_each("weight_g_idx", ordered, scales.shape[dim]))
        elif dimension.divisor > 1:
            scales = scales.repeat_interleave(dimension.divisor, dim).narrow(dim, 0, size)
    return scales


def group_of_each(name: str, index: Tensor, groups: int) -> Tensor:
    """Each input's group, as a tensor names it. Raises TpspecError for a number that is no group's."""
    beyond = ((index < 0) | (index >= groups)).nonzero().flatten()
    if len(beyond):
        at = int(beyond[0])
        problem = f"{name}[{at}] is {int(index[at])}, and the groups are 0 to {groups - 1}"
        raise TpspecError(problem, remedy="is the file damaged? fetch the checkpoint again")
    return index.long()


def unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """The unsigned numbers in int32s along a dimension, `32 // bits` in each, the lowest bits first."""
    shifts = torch.arange(32 // bits, dtype=torch.int32) * bits
    numbers = (packed.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return numbers.movedim(-1, dim % packed.dim() + 1).flatten(dim % packed.dim(), dim % packed.dim() + 1)
