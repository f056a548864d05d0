"""Aligned columns for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click


def print_columns(rows: Iterable[Sequence[str]], *, indent: int = 2, gap: int = 3) -> None:
    """Prints rows whose columns line up; cells may carry colours."""
    table = list(rows)
    widths = [max(len(click.unstyle(row[i])) for row in table) for i in range(len(table[0]))] if table else []
    for row in table:
        cells = (
            cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)
        )
        click.echo(" " * indent + (" " * gap).join(cells).rstrip())


def head(*titles: str) -> list[str]:
    """The titles of columns."""
    return [click.style(title, dim=True) for title in titles]
