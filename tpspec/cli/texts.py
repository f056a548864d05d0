"""Texts on stdout as they come, one below the other in the order of their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tpspec.runtime.request import Piece


class Texts:
    """Of texts that grow side by side, shows the first that has no end yet as it grows.

    `heads` stand before the texts; with `silent`, nothing is shown.
    """

    def __init__(self, heads: Sequence[str], *, silent: bool) -> None:
        self.heads = heads
        self.silent = silent
        self.first_at = 0.0
        """When the first token was there, by the monotonic clock."""
        self._current = 0
        self._begun = False
        self._waiting: list[list[Piece]] = [[] for _ in heads]

    def add(self, piece: Piece) -> None:
        """Takes the next piece of any text."""
        self.first_at = self.first_at or monotonic()
        if self.silent:
            return
        self._waiting[piece.sequence].append(piece)
        while self._current < len(self.heads) and (pieces := self._waiting[self._current]):
            if not self._begun:
                click.echo(self.heads[self._current], nl=False)
            self._begun = not pieces[-1].last
            click.echo("".join(piece.text for piece in pieces), nl=not self._begun)
            pieces.clear()
            if self._begun:
                return
            self._current += 1
