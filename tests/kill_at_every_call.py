"""Kills a conversion (SIGKILL) at each of its calls that change a file, and has another one go on.

    python -m kill_at_every_call FOLDER STEP

FOLDER is empty; every STEP-th call is tried. A process of its own, without threads, so that it may fork.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from cut_checkpoints import contents, example

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.journal import clear_state
from tpspec.converters.readers import CheckpointReader
from tpspec.converters.verify import verify
from tpspec.file_names import MANIFEST

CALLS = ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "mkdir", "unlink", "rmdir")
FROM_START, FROM_MIDDLE = 10, 11


def main(folder: Path, step: int) -> None:
    source, reference = folder / "source", folder / "reference"
    example(4)[0].write(source)
    assert in_child(lambda: run(source, reference)) == FROM_START
    expected = contents(reference)
    ends: list[int] = []
    for number in count(step, step):
        out = folder / f"out-{number}"
        if in_child(lambda number=number, out=out: run(source, out, kill_at=number)) != -signal.SIGKILL:
            sys.stdout.write(f"killed {len(ends)} times, went on {ends.count(FROM_MIDDLE)} times")
            return
        if (out / MANIFEST).exists():
            assert not verify(out).findings, number
            clear_state(out)
        else:
            ends.append(in_child(lambda out=out: run(source, out)))
            assert ends[-1] in {FROM_START, FROM_MIDDLE}, number
        assert contents(out) == expected, number


def run(source: Path, out: Path, *, kill_at: int = 0) -> int:
    if kill_at:
        numbers = count(1)
        for name in CALLS:
            setattr(os, name, killing(getattr(os, name), numbers, kill_at))
    begun: list[int] = []
    convert(
        CheckpointReader(open_checkpoint(source)),
        out,
        example(4)[1],
        strip_bytes=64,
        sync_bytes=128,
        progress=lambda done, _: begun.append(done),
    )
    return FROM_START if begun and begun[0] <= 64 else FROM_MIDDLE


def killing(call: Callable[..., Any], numbers: Iterator[int], kill_at: int) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    return counted


def in_child(work: Callable[[], int]) -> int:
    """The exit status of a forked process that does some work; minus the signal that killed it."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = work()
        except BaseException:  # noqa: BLE001 - the child must not return
            traceback.print_exc()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
