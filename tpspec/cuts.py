"""From a tag's parts to a `Cut`: where each rank's units lie in a stored dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpspec.axes import Axis, held_units, shares
from tpspec.layout import Cut, Segment, Share, merge_adjacent


@dataclass(frozen=True, slots=True)
class Extent:
    """One part of a dimension: an axis and the width of its units in this tensor.

    An axis of None is a part of `width` rows that every rank holds whole.
    """

    axis: Axis | None
    width: int

    @property
    def units(self) -> int:
        return self.axis.units if self.axis else 1

    @property
    def size(self) -> int:
        return self.units * self.width

    def segments(self, tp: int, rank: int) -> tuple[Segment, ...]:
        """The rank's units."""
        return shares(self.axis, tp)[rank] if self.axis else (Segment(0, 1),)


def cut(
    dim: int, parts: Sequence[Extent], tp: int, *, interleaved: Axis | None = None, blocks: int = 1
) -> Cut:
    """Shares out a dimension made of `blocks` equal blocks, each the parts one after another.

    With `interleaved`, a block holds one group after another, a unit of that axis each, and a
    group holds its piece of every part: [q q k v | q q k v].
    """
    block = sum(part.size for part in parts)
    ranks = []
    for rank in range(tp):
        within = (
            list(_grouped(parts, interleaved, tp, rank)) if interleaved else list(_stacked(parts, tp, rank))
        )
        ranks.append(merge_adjacent(_shift(segment, b * block) for b in range(blocks) for segment in within))
    return Cut(dim, blocks * block, tuple(ranks))


def joined(
    dim: int, parts: Sequence[Extent], tp: int, *, interleaved: Axis | None = None, blocks: int = 1
) -> Cut:
    """The dimension as a model has it that tp ranks divide: all ranks' units, zeros and copies included.

    One rank holds it all. A replicated part stands once.
    """
    block = sum(part.size for part in parts)
    within: list[Segment] = []
    if interleaved:
        within = [segment for rank in range(tp) for segment in _grouped(parts, interleaved, tp, rank)]
    else:
        start = 0
        for part in parts:
            ranks = range(tp if part.axis else 1)
            within += [segment for rank in ranks for segment in _placed(part, tp, rank, start)]
            start += part.size
    share = merge_adjacent(_shift(segment, b * block) for b in range(blocks) for segment in within)
    return Cut(dim, blocks * block, (share,))


def _stacked(parts: Sequence[Extent], tp: int, rank: int) -> Iterator[Segment]:
    start = 0
    for part in parts:
        yield from _placed(part, tp, rank, start)
        start += part.size


def _placed(part: Extent, tp: int, rank: int, start: int) -> Iterator[Segment]:
    """The rank's units of a part that begins at `start`."""
    for unit, count in part.segments(tp, rank):
        yield Segment(None if unit is None else start + unit * part.width, count * part.width)


def _grouped(parts: Sequence[Extent], groups: Axis, tp: int, rank: int) -> Iterator[Segment]:
    """One of the rank's groups after another, with the units of each part that belong to it."""
    per_group = [part.units // groups.units for part in parts]
    stride = sum(n * part.width for n, part in zip(per_group, parts, strict=True))
    held = held_units(groups, tp, rank)
    units = [held_units(part.axis, tp, rank) if part.axis else [] for part in parts]
    for number, _ in enumerate(held):
        start = 0
        for part, of_part, n in zip(parts, units, per_group, strict=True):
            count = len(of_part) // len(held)
            for unit in of_part[number * count : (number + 1) * count]:
                at = None if unit is None else unit // n * stride + start + unit % n * part.width
                yield Segment(at, part.width)
            start += n * part.width


def _shift(segment: Segment, offset: int) -> Segment:
    return segment if segment.source is None else Segment(segment.source + offset, segment.length)


def scale(cut: Cut, divisor: int, size: int, times: int = 1) -> Cut | int:
    """The cut of a dimension in which `times` indices stand for `divisor` of this cut's.

    A run may end inside a divisor only at the end of the dimension, whose scaled size is `size`; zeros
    may fill it up. Returns the first boundary that falls inside one where there is one.
    """
    if divisor == times == 1:
        return Cut(cut.dim, size, cut.shares)
    ranks: list[Share | None] = []
    for share in cut.shares:
        scaled = []
        local = 0
        for source, length in share or ():
            start = local if source is None else source
            stop = start + length
            edges = (stop,) if source is None else (start, local, stop)
            for edge in edges:
                if edge % divisor and edge != cut.size:
                    return edge
            # Zeros begin where the last divisor that the source fills in part ends.
            first = -(-start // divisor) if source is None else start // divisor
            count = (-(-stop // divisor) - first) * times
            scaled.append(Segment(None if source is None else first * times, count))
            local += length
        ranks.append(None if share is None else merge_adjacent(scaled))
    return Cut(cut.dim, size, tuple(ranks))
