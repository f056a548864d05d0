"""The shard map as a drawing, for slides and documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpspec.pictures.drawing import Drawing, box, fitted, line, width_of, words
from tpspec.pictures.elements import Markup, element, joined
from tpspec.pictures.legend import legend
from tpspec.pictures.pieces import Piece, kind, pieces, whole_everywhere
from tpspec.pictures.sections import sections
from tpspec.pictures.words import label, most_bytes, shared_out
from tpspec.quantities import size
from tpspec.shard_map import MapRow

WIDTH = 1280.0
MARGIN = 28.0
NAMES = 270.0
ROW = 34.0
BLOCK = 24.0
THIN = 8.0
LABEL = 11.0
LEAST_RANK = 12.0
"""Pixels of a rank's column at the least; more ranks make a wider drawing."""
LEAST_ZEROS = 5.0
LEAST_UNIT = 12.0
"""Pixels of a head at the least, for lines between heads."""


def map_figure(rows: Sequence[MapRow], tp: int, title: str, note: str) -> Drawing:
    """The shard map of one tp: a row for each kind of tensor, a column for each rank."""
    width = max(WIDTH, 2 * MARGIN + NAMES + tp * LEAST_RANK)
    column = (width - 2 * MARGIN - NAMES) / tp
    left, y = MARGIN + NAMES, MARGIN + 18
    drawn = [_patterns(), words(MARGIN, y, title, "title"), words(MARGIN, y + 24, note, "quiet")]
    y += 42
    drawn.append(joined(_legend(rows, tp, y)))
    y += 42
    drawn.append(words(left - 12, y, "rank", "quiet small end"))
    every = -(-int(width_of(str(tp - 1), LABEL) + 4) // int(column)) if column < 40 else 1
    drawn += (
        words(left + (rank + 0.5) * column, y, str(rank), "quiet small middle")
        for rank in range(0, tp, every)
    )
    for section in sections(rows):
        if section.title:
            y += 30
            drawn.append(words(MARGIN, y, section.title, "strong"))
            drawn.append(words(MARGIN + width_of(section.title, 13) + 8, y, section.note, "quiet"))
            drawn.append(line(MARGIN, y + 8, width - MARGIN, y + 8, "grid"))
        y += 12
        for short, row in section.rows:
            drawn.append(joined(_row(short, row, tp, left, y, column)))
            y += ROW
    return Drawing(width, y + MARGIN - 6, f"{title}. {note}", joined(drawn))


def _row(short: str, row: MapRow, tp: int, left: float, y: float, column: float) -> Iterator[Markup]:
    weight = most_bytes(row)
    summary = shared_out(row) + (f" · {size(weight)}" if weight else "")
    yield words(MARGIN, y + 14, fitted(short.removesuffix(".weight"), 12, NAMES - 8), "mono")
    yield words(MARGIN, y + 28, fitted(summary, LABEL, NAMES - 8), "quiet small")
    if row.cut is None:
        yield words(left + tp * column / 2, y + 21, "on no rank", "quiet small middle")
        return
    thin = whole_everywhere(row)
    height = THIN if thin else BLOCK
    for rank in range(tp):
        x = left + rank * column + 0.75
        yield from _cell(row, rank, x, y + 5 + (BLOCK - height) / 2, column - 1.5, height)


def _cell(row: MapRow, rank: int, x: float, y: float, width: float, height: float) -> Iterator[Markup]:
    found = pieces(row, rank)
    for piece, share in zip(found, _widths(found, width), strict=True):
        gap = 1 if found[1:] else 0
        units = piece.units[1] if piece.units and piece.look is not None else 1
        yield from _block(x, y, share - gap, height, kind(row, piece), label(row, piece), units)
        x += share


def _widths(found: Sequence[Piece], width: float) -> list[float]:
    """Widths as the lengths are, but zeros never too thin to be seen."""
    total = sum(piece.length for piece in found)
    wanted = [max(width * piece.length / total, LEAST_ZEROS if piece.zeros else 0) for piece in found]
    return [share * width / sum(wanted) for share in wanted]


def _block(
    x: float, y: float, width: float, height: float, shown: str, text: str, units: int = 1
) -> Iterator[Markup]:
    """A piece of a cell; lines between its units and its label where these fit."""
    hue, _, veil = shown.partition(" ")
    yield box(x, y, width, height, rx=2, class_=hue, fill="url(#zeros)" if hue == "zeros" else None)
    if veil:
        yield box(x, y, width, height, fill=f"url(#{veil})")
    for unit in range(1, units if units <= width / LEAST_UNIT else 1):
        yield line(x + unit * width / units, y, x + unit * width / units, y + height, "unit")
    if text and width_of(text, LABEL) + 2 <= width:
        ink = " on-hue" if hue.startswith("h") else ""
        yield words(x + width / 2, y + height / 2 + 4, text, f"small middle{ink}")


def _legend(rows: Sequence[MapRow], tp: int, y: float) -> Iterator[Markup]:
    x = MARGIN
    for entry in legend(rows, tp):
        for shown, text in entry.blocks:
            width = max(20.0, width_of(text, LABEL) + 6)
            yield from _block(x, y, width, 18, shown, text)
            x += width + 2
        yield words(x + 6, y + 13.5, entry.meaning)
        x += 6 + width_of(entry.meaning, 12) + 20


def _patterns() -> Markup:
    """The patterns under which hues come again, and that of zeros."""
    across, down, dot = "M0 .5H6", "M.5 0V6", "M1 2H3M4 5H6"
    shapes = {
        "p1": (across, 1.0), "p2": (down, 1.0), "p3": (across + down, 1.0), "p4": (dot, 2.0),
        "p5": ("M0 1.5H6", 3.0), "p6": ("M1.5 0V6", 3.0), "p7": ("M0 1.5H6M1.5 0V6", 2.0),
    }  # fmt: skip
    veils = (_pattern(name, path, width, "veil") for name, (path, width) in shapes.items())
    return element("defs", veils, _pattern("zeros", "M-1 1L1 -1M0 6L6 0M5 7L7 5", 1.0, "hatch"))


def _pattern(name: str, path: str, width: float, class_: str) -> Markup:
    stroke = element("path", d=path, stroke_width=width, class_=class_)
    return element("pattern", stroke, id=name, width=6, height=6, patternUnits="userSpaceOnUse")
