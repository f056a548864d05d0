"""Progress on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from tpspec.quantities import size

LOG_EVERY = 10.0
"""Seconds between two lines of a log."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """What to call with the bytes done and the bytes to do; None where nothing is to be shown."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as advance:
            yield advance
    else:
        yield _log()


@contextmanager
def resumable(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Progress of a command that goes on where it was interrupted; Ctrl-C is told so."""
    try:
        with progress(quiet=quiet) as advance:
            yield advance
    except KeyboardInterrupt:
        click.echo("stopped; the same command goes on from here", err=True)
        raise


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _log() -> Callable[[int, int], None]:
    start = last = time.monotonic()
    before = -1

    def advance(done: int, total: int) -> None:
        nonlocal last, before
        now = time.monotonic()
        if before < 0:
            before = done
        if now - last >= LOG_EVERY:
            last = now
            rate = (done - before) / (now - start)
            left = f", {(total - done) / rate:.0f} s left" if rate else ""
            click.echo(f"{size(done)} of {size(total)}, {size(rate)}/s{left}", err=True)

    return advance
