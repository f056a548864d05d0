"""Plain tables of a page: the numbers under a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpspec.pictures.elements import Markup, element


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, names: bool = False) -> Markup:
    """A table whose first column names the row. Cells are text; from the first digit on, numbers.

    `names`: the first column holds names of tensors.
    """
    body = list(rows)
    numeric = [
        any(row[i] for row in body) and all(_is_number(row[i]) for row in body) for i in range(len(titles))
    ]
    head = (
        element("th", title, scope="col", class_="n" if number else None)
        for title, number in zip(titles, numeric, strict=True)
    )
    lines = (element("tr", _cells(row, numeric, names=names)) for row in body)
    drawn = element("table", element("thead", element("tr", head)), element("tbody", lines), class_="numbers")
    return element("div", drawn, class_="scroll", tabindex=0, role="region", aria_label="Table")


def _cells(row: Sequence[str], numeric: Sequence[bool], *, names: bool) -> Iterable[Markup]:
    first = " ".join(filter(None, ("name" if names else "", "n" if numeric[0] else "")))
    yield element("th", row[0], scope="row", class_=first or None)
    for cell, number in zip(row[1:], numeric[1:], strict=True):
        yield element("td", cell, class_="n" if number else None)


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell in ("no room", "–")
