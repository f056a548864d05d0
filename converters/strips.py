"""Geometry: which bytes of a tensor go where in a rank's piece of it.

A strip is any run `start : stop` of a tensor's bytes, row-major. Seen from the cut dimension the
tensor is outer × size × inner bytes, and a strip is a few blocks of it, each partial on one level
at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tpspec.layout import Cut, Fold, Share


class Block(NamedTuple):
    """Bytes `low : high` of the indices `start : stop`, in `rows` outer indices from `outer` on.

    More than one row means whole rows; more than one index means whole indices.
    """

    outer: int
    rows: int
    start: int
    stop: int
    low: int
    high: int

    @property
    def width(self) -> int:
        """Bytes of one of the block's rows."""
        return (self.stop - self.start) * (self.high - self.low)


class Run(NamedTuple):
    """`length` indices of the source from `source` on, which a rank holds from `local` on."""

    source: int
    local: int
    length: int


class Owned(NamedTuple):
    """A run and the rank that it is read from."""

    rank: int
    run: Run


def strips(fold: Fold, limit: int) -> Iterator[tuple[int, int]]:
    """Cuts a tensor into runs of at most `limit` bytes: of whole rows, else whole indices, where they fit."""
    row = fold.size * fold.inner
    unit = next((unit for unit in (row, fold.inner) if 0 < unit <= limit), 1)
    step = limit // unit * unit
    total = fold.outer * row
    for start in range(0, total, step):
        yield start, min(start + step, total)


def blocks(fold: Fold, start: int, stop: int) -> Iterator[Block]:
    """The blocks that a run of a tensor's bytes consists of, in order."""
    _, size, inner = fold
    row = size * inner
    while start < stop:
        outer, rest = divmod(start, row)
        index, low = divmod(rest, inner)
        left = stop - start
        if low or left < inner:
            block = Block(outer, 1, index, index + 1, low, min(inner, low + left))
        elif index or left < row:
            block = Block(outer, 1, index, min(size, index + left // inner), 0, inner)
        else:
            block = Block(outer, left // row, 0, size, 0, inner)
        yield block
        start += block.rows * block.width


@lru_cache(maxsize=4096)
def runs(share: Share) -> tuple[Run, ...]:
    """What a rank holds of the source; the local indices between the runs are zeros."""
    found, local = [], 0
    for source, length in share:
        if source is not None:
            found.append(Run(source, local, length))
        local += length
    return tuple(found)


@lru_cache(maxsize=4096)
def passes(share: Share) -> tuple[tuple[Run, ...], ...]:
    """A rank's runs in groups that each come in the order of the source: one, but for heads held twice."""
    found: list[list[Run]] = [[]]
    for run in runs(share):
        if found[-1] and run.source < found[-1][-1].source + found[-1][-1].length:
            found.append([])
        found[-1].append(run)
    return tuple(map(tuple, found))


def turns(fold: Fold, cut: Cut, limit: int) -> int:
    """How often a tensor is read so that each rank gets its part in order; once where whole rows are read."""
    if fold.size * fold.inner <= limit:
        return 1
    return max(len(passes(share)) for share in cut.shares if share is not None)


@lru_cache(maxsize=4096)
def owners(cut: Cut) -> tuple[Owned, ...]:
    """Every source index once, ascending, each from the first rank that holds it."""
    held = [Owned(rank, run) for rank, share in enumerate(cut.shares) for run in runs(share or ())]
    held.sort(key=lambda owned: (owned.run.source, owned.rank))
    found: list[Owned] = []
    position = 0
    for rank, (source, local, length) in held:
        skip = max(0, position - source)
        if skip < length:
            found.append(Owned(rank, Run(source + skip, local + skip, length - skip)))
            position = source + length
    return tuple(found)


def clip(run: Run, start: int, stop: int) -> Run | None:
    """The part of a run that lies within the source indices `start : stop`."""
    source, local, length = run
    low, high = max(source, start), min(source + length, stop)
    return Run(low, local + low - source, high - low) if low < high else None
