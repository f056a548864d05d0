"""The process that ranks are forked from: it imports once what all of them need, and does nothing else.

The ranks share the memory of these imports. There is no torch operation here, for a process forked after a
multi-threaded one hangs, and no CUDA call. The server says how a rank ended when it is asked, and ends
them all when the launcher goes away.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

from tpspec.errors import TpspecError
from tpspec.runtime.out_of_memory import out_of_memory

if TYPE_CHECKING:
    from tpspec.runtime.rank_process import Meeting

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Job:
    """What a launcher asks for: the modules to import, then `size` ranks that do the pickled work.

    `outlets` are descriptors, one per rank, on which the rank tells what comes of it.
    """

    kind: str
    size: int
    timeout: float
    imports: tuple[str, ...]
    work: bytes
    outlets: tuple[int, ...]


def main(control: int) -> None:
    """Serves one job: answers with the ranks' process ids, or a TpspecError, then ranks' wait statuses."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    launcher = Connection(control)
    pids: list[int] = []
    with suppress(EOFError, ConnectionError):  # the launcher went away
        job: Job = launcher.recv()
        try:
            for name in job.imports:
                import_module(name)
            fork_ranks(job, launcher, pids)
        except (ImportError, OSError, MemoryError) as error:
            reason = out_of_memory(error) or (str(error).strip().splitlines() or [type(error).__name__])[-1]
            launcher.send(TpspecError(f"the ranks could not be started: {reason}"))
        else:
            launcher.send(pids)
            answer(launcher, pids)
    left = [pid for pid in pids if pid]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for pid in left:
        os.waitpid(pid, 0)


def answer(launcher: Connection, pids: list[int]) -> None:
    """Says how ranks ended, as long as the launcher asks; a rank that has been waited for leaves `pids`."""
    while True:
        rank: int = launcher.recv()
        _, status = os.waitpid(pids[rank], 0)
        pids[rank] = 0
        launcher.send(status)


def fork_ranks(job: Job, launcher: Connection, pids: list[int]) -> None:
    """Forks the ranks, appending to `pids`."""
    from tpspec.runtime.rank_process import prepare_meeting

    meeting = prepare_meeting(job.kind, job.size)
    server = os.getpid()
    for rank in range(job.size):
        pid = os.fork()
        if pid == 0:
            launcher.close()
            be_rank(job, meeting, rank, server)
        pids.append(pid)
    for outlet in job.outlets:
        os.close(outlet)


def be_rank(job: Job, meeting: Meeting, rank: int, server: int) -> NoReturn:
    """Runs a rank in the forked process, which dies with the server."""
    from tpspec.runtime.rank_process import run_rank

    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == server:  # else it has died before this was set
            for other, outlet in enumerate(job.outlets):
                if other != rank:
                    os.close(outlet)
            tell = Connection(job.outlets[rank], readable=False).send_bytes
            run_rank(job.work, meeting, rank, job.size, job.timeout, tell)
            status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # what the server set up is not the rank's to take down
