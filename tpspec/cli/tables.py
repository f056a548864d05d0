"""Aligned columns and wrapped lines for the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click

EIGHTHS = " ▏▎▍▌▋▊▉█"
LONGEST, SHORTEST = 16, 6
"""Characters that a bar has, and below which there is none."""
CLOSE = 2
"""Characters between columns where a line is too narrow."""
PIPED = 120
"""Characters of a line where no terminal says."""
LEAST = 16
"""Characters that are left to a column however narrow the terminal."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell that is drawn as long as `part` (0 to 1) says, where the line has room."""

    part: float
    colour: str

    def drawn(self, width: int) -> str:
        """The bar in eighths of a character."""
        eighths = round(min(width, LONGEST) * 8 * self.part)
        text = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        return click.style(text, fg=self.colour) if text else ""


def line_width() -> int:
    """Characters of a line."""
    return shutil.get_terminal_size((PIPED, 0)).columns if sys.stdout.isatty() else PIPED


def print_columns(
    rows: Iterable[Sequence[str | Bar]], *, indent: int = 2, gap: int = 3, flexible: int | None = None
) -> None:
    """Prints rows whose columns line up; cells may carry colours.

    Where a line is too narrow, bars get shorter or are left out, columns come closer, and cells of the
    column `flexible` go on below.
    """
    table = list(rows)
    if not table:
        return
    room = line_width() - indent
    bars = {i for row in table for i, cell in enumerate(row) if isinstance(cell, Bar)}
    columns = ([cell for cell in column if isinstance(cell, str)] for column in zip(*table, strict=True))
    widths = [max(map(length, column), default=0) for column in columns]
    spare = room - sum(widths) - gap * (len(widths) - 1)
    for i in bars:
        wanted = min(LONGEST, widths[i] + spare)
        widths[i] = max(widths[i], wanted if wanted >= SHORTEST else 0)
    if not widths[-1]:
        spare += gap
    if spare < 0 and gap > CLOSE:
        gap, spare = CLOSE, spare + (gap - CLOSE) * (len(widths) - 1)
    if flexible is not None and spare < 0:
        widths[flexible] = max(widths[flexible] + spare, min(LEAST, widths[flexible]))
    for row in table:
        cells = [cell.drawn(widths[i]) if isinstance(cell, Bar) else cell for i, cell in enumerate(row)]
        for line in _lines(cells, widths, flexible):
            padded = (cell + " " * (width - length(cell)) for cell, width in zip(line, widths, strict=True))
            click.echo(" " * indent + (" " * gap).join(padded).rstrip())


def _lines(cells: list[str], widths: Sequence[int], flexible: int | None) -> Iterator[list[str]]:
    if flexible is None:
        yield cells
        return
    first, *rest = wrapped(cells[flexible], widths[flexible]) or [""]
    yield [*cells[:flexible], first, *cells[flexible + 1 :]]
    for more in rest:
        yield ["" if i != flexible else more for i in range(len(cells))]


def head(*titles: str) -> list[str]:
    """The titles of columns."""
    return [click.style(title, dim=True) for title in titles]


def wrapped(text: str, width: int) -> list[str]:
    """The words of a text in lines of so many characters, colours not counted."""
    lines: list[str] = []
    for word in text.split():
        if lines and length(lines[-1]) + 1 + length(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def print_wrapped(text: str, first: str = "", below: str = "", *, dim: bool = False) -> None:
    """Prints a paragraph, `first` before its first line and `below` before the others."""
    lines = wrapped(text, line_width() - length(below))
    for number, line in enumerate(lines):
        click.echo(f"{below if number else first}{click.style(line, dim=True) if dim else line}")


def length(text: str) -> int:
    """Characters of a text without its colours."""
    return len(click.unstyle(text))
