"""The Layout: which part of each stored tensor each rank holds.

Everything that slices, merges, counts or checks reads this one table. A tensor is cut along at
most one dimension; a rank's share of that dimension is a sequence of segments, each a run of
source indices or a run of zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from tpspec.dtypes import nbytes
from tpspec.padding import Order

MAX_TP = 4096
"""Largest tp that is considered."""


class Segment(NamedTuple):
    """`length` indices of a rank's share: the source's `source : source + length`, or zeros."""

    source: int | None
    length: int


Share = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How one dimension is shared out: the `size` indices of `dim`, and each rank's share of them.

    With `dim` None the tensor is one unit of size 1 that a rank holds whole, as zeros of the same
    shape, or (a share of None) not at all.
    """

    dim: int | None
    size: int
    shares: tuple[Share | None, ...]

    @property
    def tp(self) -> int:
        return len(self.shares)

    def length(self, rank: int) -> int:
        """Local size of the dimension on a rank, zeros included; 0 where the rank holds nothing."""
        return sum(segment.length for segment in self.shares[rank] or ())

    def zeros(self, rank: int) -> int:
        """How many of a rank's local indices are zero fill."""
        return sum(s.length for s in self.shares[rank] or () if s.source is None)

    def first(self, count: int) -> Cut:
        """The same ranks' shares of the first `count` indices alone; what follows counts as zero fill."""
        shares = (share and merge_adjacent(_zero_from(count, share)) for share in self.shares)
        return Cut(self.dim, count, tuple(shares))

    def copies(self) -> list[tuple[int, int, int]]:
        """Coverage as (start, stop, count) runs over the dimension: how many ranks hold each index."""
        edges: dict[int, int] = {0: 0, self.size: 0}
        for share in self.shares:
            for source, length in share or ():
                if source is not None:
                    edges[source] = edges.get(source, 0) + 1
                    edges[source + length] = edges.get(source + length, 0) - 1
        runs: list[tuple[int, int, int]] = []
        count, start = 0, 0
        for position in sorted(edges):
            if position > start:
                if runs and runs[-1][2] == count:
                    runs[-1] = (runs[-1][0], position, count)
                else:
                    runs.append((start, position, count))
                start = position
            count += edges[position]
        return runs


def _zero_from(end: int, share: Share) -> Iterator[Segment]:
    for source, length in share:
        kept = length if source is None else min(length, max(0, end - source))
        yield Segment(source, kept)
        yield Segment(None, length - kept)


def whole(tp: int) -> Cut:
    """Every rank holds the tensor whole."""
    return Cut(None, 1, ((Segment(0, 1),),) * tp)


def once(tp: int) -> Cut:
    """Rank 0 holds the tensor, the others zeros of its shape, so that a sum counts it once."""
    return Cut(None, 1, ((Segment(0, 1),), *((Segment(None, 1),),) * (tp - 1)))


class Fold(NamedTuple):
    """A row-major tensor seen from its cut dimension: `outer` × `size` × `inner` bytes."""

    outer: int
    size: int
    inner: int


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One stored tensor and its cut. `dtype` is the safetensors name (`BF16`), `rule` says why."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    cut: Cut
    rule: str = ""

    def held_by(self, rank: int) -> bool:
        return self.cut.shares[rank] is not None

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of the rank's piece."""
        dim = self.cut.dim
        if dim is None:
            return self.shape
        return (*self.shape[:dim], self.cut.length(rank), *self.shape[dim + 1 :])

    def local_bytes(self, rank: int) -> int:
        """Bytes of the rank's piece; 0 where the rank does not hold the tensor."""
        return nbytes(self.dtype, self.local_shape(rank)) if self.held_by(rank) else 0

    def fold(self) -> Fold:
        """The tensor as outer × size × inner, inner in bytes."""
        dim = self.cut.dim
        if dim is None:
            return Fold(1, 1, nbytes(self.dtype, self.shape))
        inner = nbytes(self.dtype, self.shape[dim + 1 :])
        return Fold(prod(self.shape[:dim]), self.shape[dim], inner)


@dataclass(frozen=True)
class Layout:
    """The whole table for one checkpoint and one tensor parallel size.

    `tensors` stands in the order in which rank files store them; `extras` names the stored
    tensors that no rank reads (ignored, dropped or unused) and that merging needs all the same.
    `pad` is the order in which zero units were chosen, None where tp has to divide.
    """

    tp: int
    spec: str
    tensors: Mapping[str, TensorLayout]
    extras: tuple[str, ...] = ()
    pad: Order | None = None

    def of_rank(self, rank: int) -> Iterator[TensorLayout]:
        """The tensors that a rank holds, in file order."""
        return (tensor for tensor in self.tensors.values() if tensor.held_by(rank))

    def rank_bytes(self, rank: int) -> int:
        """Bytes of a rank's tensors."""
        return sum(tensor.local_bytes(rank) * count for tensor, count in self._alike)

    @cached_property
    def _alike(self) -> tuple[tuple[TensorLayout, int], ...]:
        """One tensor of each type, shape and cut, and how many there are: a model has few kinds."""
        kinds: dict[tuple[str, tuple[int, ...], Cut], list[TensorLayout]] = defaultdict(list)
        for tensor in self.tensors.values():
            kinds[tensor.dtype, tensor.shape, tensor.cut].append(tensor)
        return tuple((tensors[0], len(tensors)) for tensors in kinds.values())

    def padding(self) -> dict[str, tuple[int, int]]:
        """Tensors that are padded, as name → (stored size, padded size) of the cut dimension."""
        padded = {}
        for name, tensor in self.tensors.items():
            cut = tensor.cut
            if cut.dim is not None:
                added = sum(cut.zeros(rank) for rank in range(cut.tp))
                if added:
                    padded[name] = (cut.size, cut.size + added)
        return padded


def merge_adjacent(segments: Iterable[Segment]) -> Share:
    """Joins segments that follow one another in the source; drops empty ones."""
    merged: list[Segment] = []
    for segment in segments:
        if not segment.length:
            continue
        last = merged[-1] if merged else None
        if last and (
            (last.source is None and segment.source is None)
            or (last.source is not None and last.source + last.length == segment.source)
        ):
            merged[-1] = Segment(last.source, last.length + segment.length)
        else:
            merged.append(segment)
    return tuple(merged)
