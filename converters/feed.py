"""A tensor at a time from a reader into a pipeline, hashed and counted on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import xxhash

from tpspec.checkpoint import StoredTensor
from tpspec.converters.pipeline import Pipeline
from tpspec.converters.readers import Reader
from tpspec.converters.sinks import Bytes
from tpspec.converters.strips import strips
from tpspec.layout import Fold

STRIP_BYTES = 4 << 20

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""

W = TypeVar("W")
P = ParamSpec("P")


class Feed(Generic[W]):
    """Reads tensors strip by strip, and has every writer of a pipeline work on each strip."""

    def __init__(
        self, reader: Reader, pipeline: Pipeline[W], strip_bytes: int, total: int, progress: Progress | None
    ) -> None:
        self.done = 0
        self._reader = reader
        self._pipeline = pipeline
        self._strip_bytes = strip_bytes
        self._total = total
        self._progress = progress

    def tensor(
        self,
        stored: StoredTensor,
        fold: Fold,
        work: Callable[Concatenate[W, int, Bytes, P], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> bytes:
        """Feeds one tensor to `work(writer, start, strip, …)`; returns the XXH3-128 of its bytes."""
        digest = xxhash.xxh3_128()
        for start, stop in strips(fold, self._strip_bytes):
            buffer = self._pipeline.buffer()
            strip = buffer[: stop - start]
            self._reader.read(stored, start, strip)
            digest.update(strip.data)
            self._pipeline.submit(work, buffer, start, strip, *args, **kwargs)
            self.done += strip.size
            if self._progress:
                self._progress(self.done, self._total)
        return digest.digest()
