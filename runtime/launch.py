"""Starting the ranks of a group on this machine, or joining the group that torchrun started.

No torch here: the process that launches ranks computes nothing, and need not wait for the import.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from tpspec.errors import TpspecError
from tpspec.runtime.calls import TIMEOUT, RankLost, of_rank
from tpspec.runtime.fork_server import Job
from tpspec.runtime.out_of_memory import REMEDY, OutOfMemory, kills

if TYPE_CHECKING:
    from tpspec.runtime.collectives import Collectives

Kind = Literal["shared", "gloo", "threads"]

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GRACE = 2.0
"""Seconds in which a rank at fault may still say so, once another has said that it lost one."""


def launch(
    size: int,
    target: Callable[..., Any],
    arguments: Sequence[object] = (),
    *,
    kind: Kind = "shared",
    on_message: Callable[[Any], object] | None = None,
    preload: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> Any:
    """Runs `target(collectives, *arguments)` as each of `size` ranks; returns what rank 0 returns.

    Where the target is a generator, `on_message` gets what rank 0 yields, as it comes. `shared` and `gloo`
    make each rank a process (on other machines than x86-64, `shared` is gloo); their target and arguments
    are pickled, and modules in `preload` are imported once for all. `threads` makes it a thread of
    this process.

    Raises a rank's TpspecError, naming the rank, or a TpspecError that says how a rank's process ended;
    RuntimeError with a rank's traceback for any other exception. Then, and on Ctrl-C, no rank is left.
    """
    if kind == "threads":
        from tpspec.runtime.thread_ranks import run_threads

        return run_threads(size, target, arguments, on_message, timeout, GRACE)
    if platform.machine() != "x86_64":
        kind = "gloo"
    inlets, outlets = zip(*(Pipe(duplex=False) for _ in range(size)), strict=True)
    imports = ("tpspec.runtime.rank_process", *preload, target.__module__)
    work = pickle.dumps((target, arguments))
    job = Job(kind, size, timeout, imports, work, tuple(outlet.fileno() for outlet in outlets))
    with closing(ForkServer(job.outlets)) as server:
        for outlet in outlets:
            outlet.close()
        server.start(job)
        return listen(inlets, server, on_message)


class ForkServer:
    """The process that ranks are forked from, as the launcher sees it."""

    def __init__(self, outlets: Sequence[int]) -> None:
        self.control, theirs = Pipe()
        self.ranks: list[int] = []
        self.kills = kills()
        serve = f"from tpspec.runtime.fork_server import main; main({theirs.fileno()})"
        program = f"import sys; sys.path[:] = {sys.path!r}; {serve}"
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the server ignores it
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-c", program],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy's import starts no threads
                stdin=subprocess.DEVNULL,
                stdout=2,  # results go to this process, which prints them
                pass_fds=[theirs.fileno(), *outlets],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()

    def close(self) -> None:
        """Ends the server and its ranks."""
        self.control.close()
        if not self.ranks:
            self.process.kill()  # it may be importing for seconds yet
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and the ranks with it
            self.process.wait()

    def start(self, job: Job) -> None:
        """Has the ranks forked, once all is imported."""
        answer = self._ask(job)
        if isinstance(answer, TpspecError):
            raise answer
        self.ranks = answer

    def end_of(self, rank: int) -> TpspecError:
        """How a rank's process ended, which it did before it told its result."""
        return self._ended(f"rank {rank}", os.waitstatus_to_exitcode(self._ask(rank)))

    def _ask(self, request: object) -> Any:
        try:
            self.control.send(request)
            return self.control.recv()
        except (EOFError, ConnectionError):
            raise self._ended("the process that ranks are forked from", self.process.wait()) from None

    def _ended(self, who: str, status: int) -> TpspecError:
        """The error for a process that ended too early, with an exit status or by a signal (negative)."""
        if status >= 0:
            return TpspecError(f"{who} ended early, with status {status}")
        if status == -signal.SIGKILL and kills() > self.kills:
            return OutOfMemory(f"{who} was killed by the kernel (SIGKILL): out of memory", remedy=REMEDY)
        aborted = (
            "it said why above: libraries abort so when memory runs out" if status == -signal.SIGABRT else ""
        )
        return TpspecError(
            f"{who} was killed by signal {-status} ({signal.Signals(-status).name})", remedy=aborted
        )


def listen(
    inlets: Sequence[Connection], server: ForkServer, on_message: Callable[[Any], object] | None
) -> Any:
    """Takes what the ranks tell until all have ended; returns rank 0's result."""
    result = None
    loss: TpspecError | None = None
    deadline = float("inf")
    silent = set(range(len(inlets)))
    speaking = {inlet: rank for rank, inlet in enumerate(inlets)}
    while speaking and monotonic() < deadline:
        for inlet in wait([*speaking], GRACE if loss else None):
            assert isinstance(inlet, Connection)
            rank = speaking[inlet]
            try:
                what, value = pickle.loads(inlet.recv_bytes())  # noqa: S301 - from a process of our own
            except (EOFError, OSError):  # its process has ended, if killed perhaps within a message
                del speaking[inlet]
                if rank in silent:
                    raise server.end_of(rank) from None
                continue
            if what == "message":
                if on_message:
                    on_message(value)
                continue
            silent.remove(rank)
            if what == "crash":
                raise RuntimeError(f"rank {rank} failed:\n{value}")
            if what == "result":
                result = value if rank == 0 else result
            elif isinstance(value, RankLost):
                loss = loss or of_rank(rank, value)
                deadline = min(deadline, monotonic() + GRACE)
            else:
                raise of_rank(rank, value)
    if loss:
        raise loss
    return result


def torchrun_rank() -> tuple[int, int] | None:
    """This process's rank and how many ranks there are, where torchrun started it.

    Raises TpspecError where its environment makes no sense, as leftovers of another launcher may.
    """
    if not all(os.environ.get(name) for name in TORCHRUN):
        return None
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise TpspecError(
            f"the environment says that this is rank '{rank}' of '{size}'",
            remedy="torchrun sets RANK and WORLD_SIZE; without it, unset them",
        )
    return int(rank), int(size)


def joined_group(device: str = "cpu", timeout: float = TIMEOUT) -> Collectives | None:
    """Joins the group whose rank this process is under torchrun: NCCL on `cuda`, else gloo; else None."""
    if torchrun_rank() is None:
        return None
    from tpspec.runtime import torch_group

    return torch_group.join(device, timeout)
