"""What a rank holds of a tensor, as pieces that look alike: heads of one KV head, a part, zeros."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tpspec.axes import Axis
from tpspec.layout import Segment
from tpspec.pictures.palette import hue, look, pattern
from tpspec.shard_map import MapRow
from tpspec.sharing import Sharing

MAX_HEADS, MAX_PARTS = 128, 16
"""More pieces than this in one cell are drawn as one: parts that alternate head by head, or row by row."""
QKV = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` rows or columns of a rank's share, from `source` on; where that is None, zeros.

    For a quantized weight's scales, the rows or columns that they stand for. `part` counts the parts of
    a fused tensor from 0; None where they alternate. `units` are the heads (or whatever units the part is
    made of) as first and number, `look` is the look of heads.
    """

    length: int
    source: int | None
    part: int | None = 0
    units: tuple[int, int] | None = None
    look: int | None = None

    @property
    def zeros(self) -> bool:
        """Whether the piece is fill."""
        return self.source is None


def pieces(row: MapRow, rank: int) -> tuple[Piece, ...]:
    """A rank's pieces in the order in which it stores them; none where it does not hold the tensor."""
    cut = row.cut
    share = cut.shares[rank] if cut else None
    if cut is None or share is None:
        return ()
    if cut.dim is None:
        return (_whole(row, share[0]),)
    found = list(_split(row.sharing, share, dict(row.heads), cut.tp))
    if len(found) > (MAX_HEADS if row.heads else MAX_PARTS):
        return (Piece(sum(p.length for p in found), found[0].source, None),)
    return tuple(found)


def part_names(row: MapRow) -> tuple[str, ...]:
    """Short names of the parts of a fused tensor: q, k, v, or its axes."""
    names = tuple(part.axis.name if part.axis else "whole" for part in row.sharing.parts)
    return QKV if row.tag.startswith("qkv-head") and len(names) == len(QKV) else names


def _whole(row: MapRow, segment: Segment) -> Piece:
    selected = row.sharing.select
    if selected is None or not row.heads:
        return Piece(1, segment.source)
    axis, unit = selected
    ((_, heads),) = row.heads
    assert row.cut is not None
    return Piece(1, 0, 0, (unit, 1), look(heads, unit * heads.units // axis.units, row.cut.tp))


def _split(sharing: Sharing, share: tuple[Segment, ...], looks: dict[str, Axis], tp: int) -> Iterator[Piece]:
    last: Piece | None = None
    for piece in _in_parts(sharing, share, looks, tp):
        if last and last.units and piece.units and _continues(last, piece):
            units = (last.units[0], last.units[1] + piece.units[1])
            last = replace(last, length=last.length + piece.length, units=units)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last


def _continues(last: Piece, piece: Piece) -> bool:
    """Whether two pieces are one: units that follow one another, of one part and one look."""
    if last.source is None or not last.units or not piece.units:
        return False
    follows = last.source + last.length == piece.source and sum(last.units) == piece.units[0]
    return follows and last.part == piece.part and last.look == piece.look


def _in_parts(
    sharing: Sharing, share: tuple[Segment, ...], looks: dict[str, Axis], tp: int
) -> Iterator[Piece]:
    """The share, cut at every border between parts and, in heads, between looks."""
    scale = sharing.divisor
    for source, length in share:
        if source is None:
            yield Piece(length * scale, None)
            continue
        low, high = source * scale, (source + length) * scale
        runs = _runs(sharing)
        first = bisect_right(runs, low, key=_Run.begin) - 1
        for run in runs[first : bisect_left(runs, high, key=_Run.begin)]:
            yield from _in_heads(run, max(low, run.start), min(high, run.stop), looks, tp)


def _in_heads(run: _Run, start: int, stop: int, looks: dict[str, Axis], tp: int) -> Iterator[Piece]:
    axis = run.axis
    heads = looks.get(axis.name) if axis else None
    while start < stop:
        unit = run.unit + (start - run.start) // run.width
        end, shown = stop, None
        if axis and heads:
            owner = unit * heads.units // axis.units
            shown = look(heads, owner, tp)
            next_owner = -(-(owner + 1) * axis.units // heads.units)
            end = min(stop, run.start + (next_owner - run.unit) * run.width)
        last = run.unit + (end - 1 - run.start) // run.width
        yield Piece(end - start, start, run.part, (unit, last - unit + 1) if axis else None, shown)
        start = end


@dataclass(frozen=True, slots=True)
class _Run:
    """Indices `start : stop` of a dimension: units of one part from `unit` on, `width` indices each."""

    start: int
    stop: int
    part: int
    axis: Axis | None
    unit: int
    width: int

    def begin(self) -> int:
        """Where it starts, to look it up by."""
        return self.start


@lru_cache(maxsize=1024)
def _runs(sharing: Sharing) -> tuple[_Run, ...]:
    """Which part and which of its units every index of the dimension belongs to."""
    groups = sharing.interleaved.units if sharing.interleaved else 1
    runs, start = [], 0
    for _ in range(sharing.blocks):
        for group in range(groups):
            for number, part in enumerate(sharing.parts):
                count = part.units // groups
                stop = start + count * part.width
                runs.append(_Run(start, stop, number, part.axis, group * count, part.width))
                start = stop
    return tuple(runs)


def kind(row: MapRow, piece: Piece) -> str:
    """The class of a piece, by which style sheets draw it: `h3 p1`, `part`, `whole`, `zeros`…"""
    if piece.zeros:
        return "zeros"
    if piece.part is None:
        return "mixed"
    if piece.look is not None:
        return f"h{hue(piece.look)}" + (f" p{pattern(piece.look)}" if pattern(piece.look) else "")
    if row.cut is None or row.cut.dim is None or row.sharing.parts[piece.part].axis is None:
        return "whole"
    return "other-part" if piece.part % 2 else "part"


def whole_everywhere(row: MapRow) -> bool:
    """Whether every rank holds the tensor whole."""
    cut = row.cut
    return cut is not None and cut.dim is None and all(s and s[0].source is not None for s in cut.shares)
