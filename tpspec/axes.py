"""Axes: how whole units are shared out among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tpspec.layout import Segment


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis whose sizes are known: `units` of `width` rows or columns each.

    `replicate`: units are copied once there are more ranks than units. `pad`: zero units fill up
    to a multiple of the ranks (vocabularies).
    """

    name: str
    units: int
    width: int = 1
    replicate: bool = False
    pad: bool = False
    source: str = ""
    """The expression that gave `units`, for reports."""

    @property
    def size(self) -> int:
        """Rows or columns of the whole axis."""
        return self.units * self.width

    def misfit(self, tp: int) -> str | None:
        """Why the axis cannot be shared among `tp` ranks, as the two numbers; None where it can."""
        if self.pad or self.units % tp == 0 or (self.replicate and tp % self.units == 0):
            return None
        if self.replicate and tp > self.units:
            return f"{tp} % {self.units} = {tp % self.units}"
        return f"{self.units} % {tp} = {self.units % tp}"

    def local(self, tp: int) -> int:
        """Units that one rank holds, copies and zero units included."""
        return -(-self.units // tp)

    def copies(self, tp: int) -> int:
        """How many ranks hold each unit."""
        return tp // self.units if self.replicate and tp > self.units else 1


@lru_cache(maxsize=4096)
def shares(axis: Axis, tp: int) -> tuple[tuple[Segment, ...], ...]:
    """Each rank's units, as segments of unit indices; zero units have no source.

    Copies are repeated, not tiled: with 2 units and 8 ranks the ranks hold 0,0,0,0,1,1,1,1.
    """
    if axis.misfit(tp):
        raise ValueError(f"{axis.name}: {axis.misfit(tp)}")
    copies, local = axis.copies(tp), axis.local(tp)
    ranks = []
    for rank in range(tp):
        first = rank // copies * local
        held = max(0, min(local, axis.units - first))
        segments = (Segment(first, held), Segment(None, local - held))
        ranks.append(tuple(segment for segment in segments if segment.length))
    return tuple(ranks)
