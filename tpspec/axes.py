"""Axes: how whole units are shared out among ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from tpspec.layout import Segment, merge_adjacent
from tpspec.padding import Pair, slots


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis whose sizes are known: `units` of `width` rows or columns each.

    `replicate`: units are copied once there are more ranks than units. `pad`: zero units fill up
    what the ranks do not divide, to `multiple` units at a time, and then to `align` for speed; as its
    `pair` has it where the axis belongs to one, of which it has the groups if it `leads`. `real` is how
    many units the model has, where the last of them are padding that its config counts.
    """

    name: str
    units: int
    width: int = 1
    replicate: bool = False
    pad: bool = False
    source: str = ""
    """The expression that gave `units`, for reports."""
    multiple: int = 1
    align: int = 1
    pair: Pair | None = None
    leads: bool = False
    real: int | None = None

    @property
    def size(self) -> int:
        """Rows or columns of the whole axis."""
        return self.units * self.width

    def misfit(self, tp: int) -> str | None:
        """Why the axis cannot be shared among `tp` ranks, as the two numbers; None where it can."""
        if self.pair and not self.pair.takes(1):
            members, multiple = self.pair.members, self.pair.multiple
            return f"{members} % {multiple} = {members % multiple}"
        if self.pad or self.units % tp == 0 or (self.replicate and tp % self.units == 0):
            return None
        if self.replicate and tp > self.units:
            return f"{tp} % {self.units} = {tp % self.units}"
        return f"{self.units} % {tp} = {self.units % tp}"

    def local(self, tp: int) -> int:
        """Units that one rank holds, copies and zero units included."""
        if self.pair:
            held = slots(self.pair, tp)
            return held.per_rank * (1 if self.leads else held.members)
        step = self.multiple if self.units % (tp * self.multiple) == 0 else lcm(self.multiple, self.align)
        return -(-self.units // (tp * step)) * step

    def copies(self, tp: int) -> int:
        """How often each unit is held, over all ranks."""
        if self.pair:
            return slots(self.pair, tp).copies if self.leads else 1
        return tp // self.units if self.replicate and tp > self.units else 1


@lru_cache(maxsize=4096)
def shares(axis: Axis, tp: int) -> tuple[tuple[Segment, ...], ...]:
    """Each rank's units, as segments of unit indices; zero units have no source.

    Copies are repeated, not tiled: with 2 units and 8 ranks the ranks hold 0,0,0,0,1,1,1,1.
    """
    if axis.misfit(tp):
        raise ValueError(f"{axis.name}: {axis.misfit(tp)}")
    if axis.pair:
        return tuple(merge_adjacent(_slotted(axis.pair, tp, rank, leads=axis.leads)) for rank in range(tp))
    copies, local = axis.copies(tp), axis.local(tp)
    ranks = []
    for rank in range(tp):
        first = rank // copies * local
        held = max(0, min(local, axis.units - first))
        segments = (Segment(first, held), Segment(None, local - held))
        ranks.append(tuple(segment for segment in segments if segment.length))
    return tuple(ranks)


def _slotted(pair: Pair, tp: int, rank: int, *, leads: bool) -> Iterator[Segment]:
    """The groups in a rank's slots, or their members: slot s of all holds group s // copies."""
    per_rank, copies, members = slots(pair, tp)
    if copies == 1 and members == pair.members:
        held = max(0, min(per_rank, pair.groups - rank * per_rank))
        units = 1 if leads else members
        yield Segment(rank * per_rank * units, held * units)
        yield Segment(None, (per_rank - held) * units)
        return
    for slot in range(rank * per_rank, (rank + 1) * per_rank):
        group, part = divmod(slot, copies)
        if group >= pair.groups:
            yield Segment(None, 1 if leads else members)
        elif leads:
            yield Segment(group, 1)
        else:
            held = max(0, min(members, pair.members - part * members))
            yield Segment(group * pair.members + part * members, held)
            yield Segment(None, members - held)


def held_units(axis: Axis, tp: int, rank: int) -> list[int | None]:
    """A rank's units one by one; None for a zero unit."""
    return [
        None if first is None else first + i for first, count in shares(axis, tp)[rank] for i in range(count)
    ]
