"""The order of tensors in a rank's file.

Source order, so that conversion reads its source in one pass, but for two things: tensors that
memory holds as one follow one another (so the stacked parameter is one mapped view), and wider
elements come first (so that every tensor is aligned, as safetensors itself orders them).
"""

from __future__ import annotations

from collections.abc import Sequence

from tpspec.dtypes import BITS
from tpspec.language.spec import Spec
from tpspec.layout import TensorLayout
from tpspec.memory import Memory


def rank_file_order(spec: Spec, tensors: Sequence[TensorLayout]) -> list[TensorLayout]:
    """The tensors, given in source order, in the order of the rank files."""
    memory = Memory(spec)
    first: dict[str, int] = {}
    keys = {}
    for position, tensor in enumerate(tensors):
        member = memory.member(tensor.name)
        keys[tensor.name] = (
            (first.setdefault(member.into, position), member.row, member.alternative)
            if member
            else (position, 0, 0)
        )
    return sorted(tensors, key=lambda tensor: (-_alignment(tensor.dtype), keys[tensor.name]))


def _alignment(dtype: str) -> int:
    return max(1, BITS[dtype] // 8)
