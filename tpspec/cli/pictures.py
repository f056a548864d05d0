"""Options of commands that draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def picture_options(function: F) -> F:
    """`--html FILE`, `--svg FILE` and `--png FILE`."""
    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    for name, text in (
        ("--png", "Draw it as PNG (needs the extra 'pictures')."),
        ("--svg", "Draw it as SVG, for slides and documents."),
        ("--html", "Draw it as one page that needs no network."),
    ):
        function = click.option(name, type=path, metavar="FILE", help=text)(function)
    return function


def say_written(*paths: Path | None) -> None:
    """Says on stderr which files were written."""
    for path in filter(None, paths):
        click.echo(f"wrote {path}", err=True)
