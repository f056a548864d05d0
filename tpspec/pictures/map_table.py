"""The shard map as a table of a page: a row for each kind of tensor, a column for each rank.

A grid in ARIA's sense: arrow keys move between its cells, and each cell says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpspec.pictures.elements import Markup, element, joined, number
from tpspec.pictures.legend import legend
from tpspec.pictures.pieces import kind, pieces, whole_everywhere
from tpspec.pictures.sections import Section, sections
from tpspec.pictures.tables import table
from tpspec.pictures.words import held, label, most_bytes, name_of, shared_out, stored
from tpspec.quantities import size
from tpspec.shard_map import MapRow

MAX_LINES = 8
"""Heads of a piece that lines part from one another; more would be all lines."""
DENSE = 24
"""More ranks than this make columns so narrow that only short labels stand in them."""


def map_grid(rows: Sequence[MapRow], tp: int, caption: str) -> Markup:
    """The map of one tp, with its legend above."""
    corner = element("th", "rank", scope="col", role="columnheader")
    ranks = (element("th", str(rank), scope="col", role="columnheader") for rank in range(tp))
    grid = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", corner, ranks, role="row"), role="rowgroup"),
        (_section(section, tp) for section in sections(rows)),
        class_="map dense" if tp > DENSE else "map",
        role="grid",
        style=f"--tp:{tp}",
    )
    entries = (
        element(
            "li",
            element("span", (_block(k, text) for k, text in entry.blocks), class_="chips"),
            entry.meaning,
        )
        for entry in legend(rows, tp)
    )
    key = element("ul", entries, class_="legend", aria_label="Legend")
    return joined([key, element("div", grid, class_="scroll")])


def map_numbers(rows: Sequence[MapRow]) -> Markup:
    """The same as a plain table: what `tpspec show` prints."""
    titles = ("tensor", "tag", "tensors", "stored", "how it is shared out", "bytes of a rank")
    lines = (
        (name_of(row), row.tag, str(row.count), stored(row), shared_out(row), _weight(row)) for row in rows
    )
    return table(titles, lines, names=True)


def _weight(row: MapRow) -> str:
    return size(most_bytes(row)).replace(" ", "\u00a0") if row.tensor else ""


def _section(section: Section, tp: int) -> Markup:
    note = element("span", section.note, class_="note")
    title = element("th", section.title, " ", note, colspan=tp + 1, scope="rowgroup", role="rowheader")
    head = element("tr", title, role="row", class_="section") if section.title else ""
    rows = (_row(short, row, tp) for short, row in section.rows)
    return element("tbody", head, rows, role="rowgroup")


def _row(short: str, row: MapRow, tp: int) -> Markup:
    stem = short.removesuffix(".weight")
    weight = element("span", ".weight", class_="weight") if stem != short else ""
    header = element(
        "th",
        element("span", stem, weight, class_="name"),
        element("span", " · ".join(filter(None, (shared_out(row), _weight(row)))), class_="sum"),
        scope="row",
        role="rowheader",
    )
    if row.cut is None:
        cells = [element("td", "on no rank", colspan=tp, role="gridcell", tabindex=-1, class_="all none")]
    elif whole_everywhere(row):
        words = element("span", held(row, 0), class_="unseen")
        blocks = element("div", element("i", class_="whole"), aria_hidden="true")
        cells = [element("td", blocks, words, colspan=tp, role="gridcell", tabindex=-1, class_="all")]
    else:
        cells = [_cell(row, rank) for rank in range(tp)]
    return element("tr", header, cells, role="row", data_name=name_of(row))


def _cell(row: MapRow, rank: int) -> Markup:
    found = pieces(row, rank)
    blocks = element("div", _blocks(row, rank), aria_hidden="true") if found else ""
    words = element("span", held(row, rank), class_="unseen")
    return element("td", blocks, words, role="gridcell", tabindex=-1)


def _blocks(row: MapRow, rank: int) -> Iterator[Markup]:
    for piece in pieces(row, rank):
        units = piece.units[1] if piece.units and piece.look is not None else 1
        style = f"flex-grow:{number(piece.length)}" + (f";--n:{units}" if 1 < units <= MAX_LINES else "")
        yield _block(kind(row, piece), label(row, piece), style)


def _block(kind_: str, text: str, style: str | None = None) -> Markup:
    return element("i", element("b", text) if text else "", class_=kind_, style=style)
