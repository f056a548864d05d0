"""Where strips go: the rank's part of a strip, found and appended to a file."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from tpspec.converters.durable import write_error
from tpspec.converters.strips import blocks, clip, passes, runs
from tpspec.layout import Fold, Share

Bytes = npt.NDArray[np.uint8]
"""A one-dimensional run of bytes."""

ZEROS: Bytes = np.zeros(1 << 20, np.uint8)


class Sink(Protocol):
    """Takes the bytes of a file in ascending order; what is left out between two writes is zeros."""

    def write(self, position: int, data: Bytes) -> None: ...


def scatter(
    strip: Bytes, start: int, fold: Fold, share: Share, base: int, sink: Sink, turn: int | None = None
) -> None:
    """Writes a rank's part of a strip.

    The strip begins at byte `start` of a tensor of this fold; the rank's piece of the tensor
    begins at byte `base` of its file. A tensor that is read in turns gives one of its passes.
    """
    inner = fold.inner
    held = runs(share) if turn is None else passes(share)[turn] if turn < len(passes(share)) else ()
    length = sum(segment.length for segment in share)
    at = 0
    for block in blocks(fold, start, start + strip.size):
        part = strip[at : at + block.rows * block.width]
        at += part.size
        position = base + block.outer * length * inner
        if block.rows == 1:
            for run in held:
                if piece := clip(run, block.start, block.stop):
                    low = (piece.source - block.start) * inner
                    high = low + piece.length * (block.high - block.low)
                    sink.write(position + piece.local * inner + block.low, part[low:high])
        elif len(held) == 1 and held[0].length == length == fold.size:
            sink.write(position, part)
        elif held:
            rows = part.reshape(block.rows, -1)
            gathered = np.empty((block.rows, length * inner), np.uint8)
            if sum(run.length for run in held) < length:
                gathered.fill(0)
            for source, local, count in held:
                stop = local + count
                gathered[:, local * inner : stop * inner] = rows[:, source * inner : (source + count) * inner]
            sink.write(position, gathered.reshape(-1))


class OutputFile:
    """A file written front to back and hashed on the way (XXH3-128, as `xxhsum -H2` gives)."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.fd = fd
        self.position = 0
        self._hash = xxhash.xxh3_128()

    def resume(self, position: int) -> None:
        """Keeps the file's first `position` bytes, and reads them again for the hash."""
        os.ftruncate(self.fd, position)
        buffer = np.empty(min(position, 4 << 20), np.uint8)
        while self.position < position:
            part = buffer[: position - self.position]
            count = os.preadv(self.fd, [part.data], self.position)
            self._hash.update(part[:count].data)
            self.position += count

    def write(self, position: int, data: Bytes) -> None:
        """Appends bytes, after zeros up to `position`."""
        self.fill(position)
        assert position == self.position, (self.name, position, self.position)
        self._append(data)

    def fill(self, position: int) -> None:
        """Appends zeros up to `position`."""
        while self.position < position:
            self._append(ZEROS[: position - self.position])

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _append(self, data: Bytes) -> None:
        self._hash.update(data.data)
        write_all(self.name, self.fd, data.data, self.position)
        self.position += data.size


def write_all(name: str, fd: int, data: Any, position: int) -> None:
    """Writes a buffer at a place of a file. Raises TpspecError that names the file where that fails."""
    written = 0
    while written < len(data):
        try:
            written += os.pwrite(fd, data[written:], position + written)
        except OSError as error:
            raise write_error(name, error) from error
