"""The order of tensors in a rank's file.

Source order, so that conversion reads its source in one pass, but for two things: tensors that
memory holds as one follow one another (so the stacked parameter is one mapped view), and wider
elements come first (so that every tensor is aligned, as safetensors itself orders them).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tpspec.dtypes import BITS
from tpspec.language.patterns import Pattern, compile_pattern, expand, skeleton_of
from tpspec.language.schema import Stack
from tpspec.language.spec import Spec
from tpspec.layout import TensorLayout


class _Member(NamedTuple):
    """One of the names of a stack, `alternative` counting those that stand side by side."""

    pattern: Pattern
    stack: Stack
    alternative: int


def rank_file_order(spec: Spec, tensors: Sequence[TensorLayout]) -> list[TensorLayout]:
    """The tensors, given in source order, in the order of the rank files."""
    members: dict[str, list[_Member]] = defaultdict(list)
    for stack in spec.memory:
        if isinstance(stack, Stack):
            for alternative, template in enumerate(expand(stack.stack)):
                pattern = compile_pattern(template)
                members[pattern.skeleton].append(_Member(pattern, stack, alternative))
    first: dict[tuple[object, ...], int] = {}
    keys = {}
    for position, tensor in enumerate(tensors):
        keys[tensor.name] = (position, 0, 0)
        for name, _ in spec.names_of(tensor.name) if members else ():
            skeleton, numbers = skeleton_of(name)
            for pattern, stack, alternative in members.get(skeleton, ()):
                matched = pattern.match(numbers)
                if matched is not None:
                    binding = dict(matched)
                    index = binding.pop(stack.over) if stack.over else 0
                    start = first.setdefault((stack.into, *binding.values()), position)
                    keys[tensor.name] = (start, index, alternative)
    return sorted(tensors, key=lambda tensor: (-_alignment(tensor.dtype), keys[tensor.name]))


def _alignment(dtype: str) -> int:
    return max(1, BITS[dtype] // 8)
