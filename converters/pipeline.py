"""One thread reads strips into a few buffers, others write them: memory is the buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from queue import SimpleQueue
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import numpy as np

from tpspec.converters.sinks import Bytes

BUFFERS = 4
WRITERS = 2
"""Threads that write, beside the one that reads."""
Writer = TypeVar("Writer")
Item = TypeVar("Item")
P = ParamSpec("P")


class Closable(Protocol):
    def close(self) -> None: ...


Closing = TypeVar("Closing", bound=Closable)


def dealt(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items of each writer, as even as can be."""
    count = min(WRITERS, len(items))
    return [items[first::count] for first in range(count)]


@contextmanager
def opened(writers: Sequence[Closing], buffer_bytes: int) -> Iterator[Pipeline[Closing]]:
    """A pipeline whose writers are closed once it has ended, whatever way it does."""
    with ExitStack() as stack:
        for writer in writers:
            stack.enter_context(closing(writer))
        yield stack.enter_context(Pipeline(writers, buffer_bytes))


class Pipeline(Generic[Writer]):
    """Writers, a thread each, that do every job in the order given, each its own part of it.

    The first exception of a writer is raised to whoever uses the pipeline next, and no job is
    done after it.
    """

    def __init__(self, writers: Sequence[Writer], buffer_bytes: int) -> None:
        self._free: SimpleQueue[Bytes] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(np.empty(buffer_bytes, np.uint8))
        self._failure: BaseException | None = None
        self._queues: list[SimpleQueue[_Job[Writer] | None]] = [SimpleQueue() for _ in writers]
        self._threads = [
            threading.Thread(target=self._work, args=pair, daemon=True)
            for pair in zip(writers, self._queues, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def buffer(self) -> Bytes:
        """A buffer that no writer needs any more."""
        buffer = self._free.get()
        self._check()
        return buffer

    def submit(
        self,
        work: Callable[Concatenate[Writer, P], None],
        buffer: Bytes | None,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Has every writer do some work; the buffer is free when all have."""
        job: _Job[Writer] = _Job(lambda writer: work(writer, *args, **kwargs), buffer, len(self._queues))
        for queue in self._queues:
            queue.put(job)

    def _work(self, writer: Writer, queue: SimpleQueue[_Job[Writer] | None]) -> None:
        while (job := queue.get()) is not None:
            if self._failure is None:
                try:
                    job.work(writer)
                except BaseException as error:  # noqa: BLE001 - raised again where the pipeline is used
                    self._failure = error
            buffer = job.done()
            if buffer is not None:
                self._free.put(buffer)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Pipeline[Writer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the workers; after an exception of the reader they leave out what is queued."""
        if error is not None and self._failure is None:
            self._failure = error
        for queue in self._queues:
            queue.put(None)
        try:
            self._join()
        except KeyboardInterrupt as interrupt:
            self._failure = interrupt
            self._join()
            raise
        if error is None:
            self._check()


class _Job(Generic[Writer]):
    """Work for every writer, and the buffer that it is about."""

    def __init__(self, work: Callable[[Writer], None], buffer: Bytes | None, writers: int) -> None:
        self.work = work
        self._buffer = buffer
        self._left = writers
        self._lock = threading.Lock()

    def done(self) -> Bytes | None:
        """Called by each writer; the last one gets the buffer."""
        with self._lock:
            self._left -= 1
            return self._buffer if not self._left else None
