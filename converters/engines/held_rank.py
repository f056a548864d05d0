"""One rank's files of a sharded_state directory, its tensors found by name and compared."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tpspec.checkpoint import StoredTensor
from tpspec.converters.sinks import ZEROS, Bytes
from tpspec.engines.layout import EngineLayout
from tpspec.errors import Finding, TpspecError
from tpspec.safetensors_header import read_header


class ComparedTensor:
    """Takes what a tensor should hold, front to back; what is left out between two writes is zeros."""

    def __init__(self, stored: StoredTensor, fd: int) -> None:
        self.stored = stored
        self.position = 0
        self.begin = 0
        """Where the piece begins that is being compared."""
        self.differs: int | None = None
        """The first byte that differs."""
        self._fd = fd

    def write(self, position: int, data: Bytes) -> None:
        """Compares the bytes at `position`, and those before it, which should be zeros."""
        self.fill(position)
        self._compare(data)

    def fill(self, position: int) -> None:
        """Compares the bytes up to `position`, which should be zeros."""
        while self.position < position:
            self._compare(ZEROS[: position - self.position])

    def _compare(self, expected: Bytes) -> None:
        if self.differs is None:
            held = np.empty(expected.size, np.uint8)
            os.preadv(self._fd, [held.data], self.stored.start + self.position)
            different = np.flatnonzero(held != expected)
            if different.size:
                self.differs = self.position + int(different[0])
        self.position += expected.size


def _tensors(path: Path) -> Sequence[StoredTensor]:
    try:
        return read_header(path).tensors
    except TpspecError as error:
        findings = [replace(finding, remedy="") for finding in error.findings]
        raise TpspecError(error.message, findings, "export again, or have the engine save it again") from None


class HeldRank:
    """A rank's tensors. Those that are of the expected type and shape are `compared`, by name."""

    def __init__(self, directory: Path, rank: int, names: Sequence[str]) -> None:
        self.rank = rank
        self.held: dict[str, StoredTensor] = {}
        self.compared: dict[str, ComparedTensor] = {}
        self._twice: list[Finding] = []
        for name in names:
            for tensor in _tensors(directory / name):
                if tensor.name in self.held:
                    problem = f"is in {self.held[tensor.name].file} too"
                    self._twice.append(Finding(tensor.name, problem, place=name))
                self.held[tensor.name] = tensor
        self._fds = {name: os.open(directory / name, os.O_RDONLY) for name in names}

    def expect(self, layout: EngineLayout) -> Iterator[Finding]:
        """What the headers say otherwise than the layout."""
        yield from self._twice
        expected = {tensor.name: tensor for tensor in layout.tensors}
        place = f"rank {self.rank}"
        for name in sorted(expected.keys() - self.held.keys()):
            yield Finding(name, "is missing", place=place)
        for name in sorted(self.held.keys() - expected.keys()):
            yield Finding(name, f"is nothing that {layout.engine.title} makes of the source", place=place)
        for name, tensor in expected.items():
            found = self.held.get(name)
            if found is None:
                continue
            wanted = tensor.dtype, tensor.shape(self.rank)
            if (found.dtype, found.shape) == wanted:
                self.compared[name] = ComparedTensor(found, self._fds[found.file])
            else:
                problem = f"is {found.dtype} {list(found.shape)}, it should be {wanted[0]} {list(wanted[1])}"
                yield Finding(name, problem, place=found.file)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
