"""GPTQ and AWQ: unsigned integers [in, out] with a scale and a zero point per group of inputs.

Sources: the packing of AutoGPTQ and GPTQModel (`gptq`, `gptq_v2`), and AutoAWQ's `gemm`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tpspec.errors import TpspecError
from tpspec.runtime.dequantize_scaled import group_of_each, unpack
from tpspec.stored import Stored

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in an int32 each of eight neighbouring columns lies."""


def dequantize_gptq(stored: Stored, tensors: Mapping[str, Tensor]) -> Tensor:
    """(weight - zero point) × scale in float32, [out, in].

    The first version of the format stores zero points less one, modulo the numbers that there are.
    """
    bits, offset = stored.numbers["bits"], stored.numbers["offset"]
    weight = unpack_stream(tensors["qweight"], bits, 0)
    zeros = (unpack_stream(tensors["qzeros"], bits, 1) + offset) & ((1 << bits) - 1)
    group = weight.shape[0] if stored.numbers["one"] else stored.numbers["group"]
    groups, named = torch.arange(weight.shape[0]) // group, tensors.get("g_idx")
    if named is not None and stored.numbers["ordered"]:
        groups = group_of_each("g_idx", named, len(zeros))
    elif named is not None:
        _check_runs(named, groups * group)
    return _scaled(weight, zeros, tensors["scales"], groups)


def _check_runs(named: Tensor, first: Tensor) -> None:
    """Raises TpspecError where inputs do not name the group of the first of their run.

    A padded rank's zeros, which may end in a group that is not full, name none.
    """
    if not torch.all((named == named[first]) | (named == 0)):
        raise TpspecError(
            "inputs belong to groups in no order, but config.json says desc_act false",
            remedy='set "desc_act": true in config.json, and convert again',
        )


def dequantize_awq(stored: Stored, tensors: Mapping[str, Tensor]) -> Tensor:
    """(weight - zero point) × scale in float32, [out, in]."""
    weight, zeros = (_columns(tensors[name]) for name in ("qweight", "qzeros"))
    groups = torch.arange(weight.shape[0]) // stored.numbers["group"]
    return _scaled(weight, zeros, tensors["scales"], groups)


def _scaled(weight: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    found: Tensor = (weight - zeros[groups]).float() * scales.float()[groups]
    return found.t()


def _columns(packed: Tensor) -> Tensor:
    numbers: Tensor = unpack(packed, 4, 1).unflatten(1, (-1, 8))
    return numbers[:, :, list(AWQ_ORDER)].flatten(1)


def unpack_stream(packed: Tensor, bits: int, dim: int) -> Tensor:
    """The unsigned numbers in int32s along a dimension, one after another, over the ends of int32s too."""
    if 32 % bits == 0:
        return unpack(packed, bits, dim)
    ones: Tensor = unpack(packed, 1, dim).unflatten(dim, (-1, bits))
    weights = torch.tensor([1 << bit for bit in range(bits)], dtype=torch.int32)
    return (ones.movedim(dim + 1, -1) * weights).sum(-1, dtype=torch.int32)
