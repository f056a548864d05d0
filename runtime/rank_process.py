"""What a rank does: meet the others, run the target, tell the launcher what came of it."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Generator
from typing import Any

import torch

from tpspec.errors import TpspecError
from tpspec.runtime import shared_memory, torch_group
from tpspec.runtime.collectives import Alone, Collectives
from tpspec.runtime.out_of_memory import out_of_memory

Meeting = int | socket.socket | None


def prepare_meeting(kind: str, size: int) -> Meeting:
    """What the ranks of one machine inherit to find each other; made before they are forked."""
    if size == 1:
        return None
    return shared_memory.create_segment(size) if kind == "shared" else torch_group.listen()


def meet(meeting: Meeting, rank: int, size: int, timeout: float) -> Collectives:
    """Joins the ranks that inherited the same meeting."""
    if meeting is None:
        return Alone()
    if isinstance(meeting, int):
        return shared_memory.SharedMemory(meeting, rank, size, timeout)
    return torch_group.meet(meeting, rank, size, timeout)


def run_rank(
    work: bytes, meeting: Meeting, rank: int, size: int, timeout: float, tell: Callable[[bytes], None]
) -> None:
    """Runs a pickled (target, arguments) as one rank; tells `(what, value)`, pickled.

    `what` is "message" for what rank 0 yields, and at the end "result", "error" (a TpspecError) or "crash"
    (a traceback).
    """
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))

    def message(value: object) -> None:
        if rank == 0:
            report("message", value)

    def report(what: str, value: object) -> None:
        tell(pickle.dumps((what, value)))

    try:
        target, arguments = pickle.loads(work)  # noqa: S301 - from the process that started this one
        collectives = meet(meeting, rank, size, timeout)
        result = drive(target(collectives, *arguments), message)
        collectives.close()
        report("result", result if rank == 0 else None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher raises it
        fault = as_fault(error)
        if fault:
            report("error", fault)
        else:
            report("crash", traceback.format_exc())


def drive(outcome: Any, message: Callable[[object], None]) -> Any:
    """The result of a target: what it returned, or, of a generator, what it returns after its messages."""
    if not isinstance(outcome, Generator):
        return outcome
    while True:
        try:
            message(next(outcome))
        except StopIteration as end:
            return end.value


def as_fault(error: BaseException) -> TpspecError | None:
    """The error as one of the input or the machine, which needs no traceback; None for a bug."""
    if isinstance(error, TpspecError):
        return error
    if memory := out_of_memory(error):
        return memory
    if isinstance(error, OSError):
        return TpspecError(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return None
