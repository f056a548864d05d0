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
        function = click.option(name, type=path, metavar="FILE", help=text, callback=_own_file)(function)
    return function


def _own_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuses what is no file's name, and a file that another picture is drawn to."""
    if path is None:
        return None
    if path.name == "-":
        raise click.BadParameter("pictures are drawn to files; give a name")
    drawn = context.meta.setdefault(__name__, {})
    other = drawn.setdefault(path.resolve(), parameter.opts[0])
    if other != parameter.opts[0]:
        raise click.BadParameter(f"{path} is what {other} is drawn to")
    return path


def say_written(*paths: Path | None) -> None:
    """Says on stderr which files were written."""
    for path in filter(None, paths):
        click.echo(f"wrote {path}", err=True)
