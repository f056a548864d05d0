"""One writer thread's files: strips in, bytes and hashes out, made durable in steps."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tpspec.converters.durable import reserve, writing
from tpspec.converters.journal import Journal
from tpspec.converters.sinks import Bytes, OutputFile, scatter
from tpspec.converters.targets import Visit

AHEAD = 4
"""Steps that may wait to be made durable while writing goes on."""


class RankWriter:
    """Writes some of a conversion's targets. Its methods are called in one thread, but for `close`."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals
        self._outputs: list[OutputFile] = []
        self._syncer = ThreadPoolExecutor(1)
        self._syncing: deque[Future[None]] = deque()

    def start(self) -> None:
        """Opens the files; what is durable of them is read again for their hashes."""
        for journal in self._journals:
            target = journal.target
            with writing(target.name):
                output = OutputFile(target.name, os.open(journal.partial, os.O_RDWR | os.O_CREAT, 0o666))
                self._outputs.append(output)
                durable = len(journal.digests)
                output.resume(int(target.offsets[durable]) if durable else 0)
                reserve(output.fd, target.size)
            if not durable:
                output.write(0, np.frombuffer(target.header, np.uint8))

    def write(self, start: int, strip: Bytes, number: int, visit: Visit, turn: int | None = None) -> None:
        """Appends to each file its part of a strip of the visit's tensor."""
        layout = visit.layout
        fold = layout.fold()
        for journal, output in zip(self._journals, self._outputs, strict=True):
            share = journal.target.share(layout.cut)
            if share and number >= len(journal.digests):
                scatter(strip, start, fold, share, int(journal.target.offsets[number]), output, turn)

    def mark(self, digests: Sequence[bytes]) -> None:
        """Begins to make durable what the visits behind these digests have written.

        Waits until all but a few steps are done, so that what is not yet durable is bounded.
        """
        self._wait(AHEAD)
        for journal, output in zip(self._journals, self._outputs, strict=True):
            output.fill(int(journal.target.offsets[len(digests)]))
        self._syncing.append(self._syncer.submit(self._sync, digests))

    def finish(self, digests: Sequence[bytes], of_files: Mapping[str, str]) -> None:
        """Makes everything durable, and gives the files their own names."""
        self.mark(digests)
        self._wait(0)
        for journal, output in zip(self._journals, self._outputs, strict=True):
            journal.finish(output.hexdigest(), of_files)

    def close(self) -> None:
        self._syncer.shutdown()
        for output in self._outputs:
            os.close(output.fd)

    def _sync(self, digests: Sequence[bytes]) -> None:
        for journal, output in zip(self._journals, self._outputs, strict=True):
            with writing(output.name):
                os.fdatasync(output.fd)
            if len(digests) > len(journal.digests):
                journal.advance(digests)

    def _wait(self, left: int) -> None:
        while len(self._syncing) > left:
            self._syncing.popleft().result()
