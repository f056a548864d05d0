"""Running a target as all ranks of a group in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from tpspec.runtime.calls import RankLost, of_rank
from tpspec.runtime.collectives import Alone
from tpspec.runtime.rank_process import as_fault, drive
from tpspec.runtime.threads import ThreadGroup, Threads


def run_threads(
    size: int,
    target: Callable[..., Any],
    arguments: Sequence[object],
    on_message: Callable[[Any], object] | None,
    timeout: float,
    grace: float,
) -> Any:
    """Rank 0's result; see `launch`. Raises the error at the root of a failure, a bug's as it is.

    After an error, ranks that do not end for `grace` seconds are left behind.
    """
    group = ThreadGroup(size, timeout)
    heard: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()

    def run(rank: int) -> None:
        collectives = Threads(group, rank) if size > 1 else Alone()

        def message(value: object) -> None:
            if rank == 0 and on_message:
                heard.put(("message", rank, value))

        try:
            result = drive(target(collectives, *arguments), message)
        except BaseException as error:  # noqa: BLE001 - raised where the threads were started
            group.leave(rank, f"failed ({error})")
            heard.put(("error", rank, error))
        else:
            group.leave(rank, "has ended")
            heard.put(("result", rank, result))

    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    threads = [Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    try:
        for thread in threads:
            thread.start()
        while len(results) + len(errors) < size:
            try:
                what, rank, value = heard.get(timeout=grace if errors else None)
            except Empty:
                break  # a rank that computes on: it ends at its next call
            if what == "message":
                assert on_message
                on_message(value)
            else:
                (results if what == "result" else errors)[rank] = value
    finally:
        for rank in range(size):
            group.leave(rank, "was stopped")  # by Ctrl-C, or by on_message
        deadline = monotonic() + grace
        for thread in threads:  # the interpreter cannot end while one is within torch
            if thread.is_alive():
                thread.join(max(0.0, deadline - monotonic()))
    if errors:
        # a rank that lost another comes last: it is not the cause
        rank, error = min(errors.items(), key=lambda item: isinstance(item[1], RankLost))
        fault = as_fault(error)
        raise of_rank(rank, fault) if fault else error
    return results[0]
