"""A file compared with what it should hold, and hashed on the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from tpspec.converters.sinks import ZEROS, Bytes, scatter
from tpspec.converters.targets import Target, Visit

HEADER = -1
"""Stands for a file's header where visits are numbered."""


class CheckedFile:
    """Takes what a target should hold, front to back, and notes the visits whose bytes differ."""

    def __init__(self, target: Target, path: Path) -> None:
        self.target = target
        self.fd = os.open(path, os.O_RDONLY)
        self.position = 0
        self.differs: dict[int, int] = {}
        """Visit → the first byte of its piece that differs."""
        self._hash = xxhash.xxh3_128()

    def write(self, position: int, data: Bytes) -> None:
        """Compares the bytes at `position`, and those before it, which should be zeros."""
        self.fill(position)
        assert position == self.position, (self.target.name, position, self.position)
        self._compare(data)

    def fill(self, position: int) -> None:
        """Compares the bytes up to `position`, which should be zeros."""
        while self.position < position:
            self._compare(ZEROS[: position - self.position])

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _compare(self, expected: Bytes) -> None:
        held = np.empty(expected.size, np.uint8)
        count = os.preadv(self.fd, [held.data], self.position)
        self._hash.update(held[:count].data)
        if count < held.size or not np.array_equal(held, expected):
            self._note(np.flatnonzero(held != expected) + self.position)
        self.position += expected.size

    def _note(self, different: np.typing.NDArray[np.intp]) -> None:
        offsets = self.target.offsets
        of_visits = np.searchsorted(offsets, different, side="right") - 1
        for visit, first in zip(*np.unique(of_visits, return_index=True), strict=True):
            start = 0 if visit == HEADER else int(offsets[visit])
            self.differs.setdefault(int(visit), int(different[first]) - start)


class Checker:
    """Compares some of a conversion's targets. Its methods are called in one thread, but for `close`."""

    def __init__(self, files: Sequence[CheckedFile]) -> None:
        self._files = files

    def start(self) -> None:
        for file in self._files:
            file.write(0, np.frombuffer(file.target.header, np.uint8))

    def write(self, start: int, strip: Bytes, number: int, visit: Visit, turn: int | None = None) -> None:
        """Compares each file with its part of a strip of the visit's tensor."""
        layout = visit.layout
        fold = layout.fold()
        for file in self._files:
            if share := file.target.share(layout.cut):
                scatter(strip, start, fold, share, int(file.target.offsets[number]), file, turn)

    def finish(self) -> None:
        for file in self._files:
            file.fill(file.target.size)

    def close(self) -> None:
        for file in self._files:
            os.close(file.fd)
