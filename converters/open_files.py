"""Source files, read at known places into buffers that the caller owns."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from weakref import finalize

from tpspec.converters.sinks import Bytes
from tpspec.errors import Finding, TpspecError
from tpspec.regular_file import open_regular

KEPT = 64
"""Files held open at once; the usual limit of a process is 1024."""
UNCHANGED = "let nothing write to the source meanwhile, and run the command again"


class OpenFiles:
    """Files of one directory, opened when they are first read, and closed with their reader at the latest.

    They are read, not mapped: a mapped file that shrinks kills the process, a read one is an error.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: OrderedDict[str, int] = OrderedDict()
        finalize(self, _close, self._files)

    def read(self, name: str, start: int, out: Bytes) -> None:
        """Fills `out` with a file's bytes from `start` on. Raises TpspecError where they are not there."""
        fd = self._open(name)
        done = 0
        while done < out.size:
            try:
                count = os.preadv(fd, [out[done:].data], start + done)
            except OSError as error:
                raise TpspecError(f"cannot read {self._directory / name}: {error.strerror}") from error
            if not count:
                problem = f"ends at byte {start + done}, bytes up to {start + out.size} were there before"
                raise TpspecError(
                    f"{self._directory} changed while it was being read",
                    [Finding(name, problem)],
                    remedy=UNCHANGED,
                )
            done += count

    def close(self) -> None:
        _close(self._files)

    def _open(self, name: str) -> int:
        if name not in self._files:
            if len(self._files) == KEPT:
                os.close(self._files.popitem(last=False)[1])
            with open_regular(self._directory / name, name) as file:
                self._files[name] = os.dup(file.fileno())
        self._files.move_to_end(name)
        return self._files[name]


def _close(files: OrderedDict[str, int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()


def stamp(path: Path) -> list[int]:
    """A file's size and time of change (ns): what tells that it is no longer the same."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
