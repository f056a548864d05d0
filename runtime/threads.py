"""Collectives among threads: all ranks in one process, for proofs and tests."""

from __future__ import annotations

from threading import Condition

import torch

from tpspec.runtime.calls import TIMEOUT, Call, differ, lost
from tpspec.runtime.rank_order import sum_in_rank_order


class ThreadGroup:
    """What the ranks of one process share: each one's number of calls, and its latest two."""

    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        self.size = size
        self.timeout = timeout
        self.changed = Condition()
        self.made = [0] * size
        self.given: tuple[dict[int, tuple[Call, torch.Tensor]], ...] = ({}, {})
        self.left: dict[int, str] = {}

    def leave(self, rank: int, reason: str) -> None:
        """Says that a rank makes no more calls, and why; who waits for it raises `RankLost`."""
        with self.changed:
            self.left.setdefault(rank, reason)
            self.changed.notify_all()

    def restart(self) -> None:
        """Forgets the calls so far and who left. No rank may be in a call."""
        self.made = [0] * self.size
        self.given = ({}, {})
        self.left.clear()


class Threads:
    """The collectives of one rank among threads.

    Even and odd calls keep their tensors apart: who makes call k + 2 has seen everyone make call
    k + 1, so nobody is left reading those of call k.
    """

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.size = group.size

    def all_reduce(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        return sum_in_rank_order(self._exchange("all_reduce", tensor, site))

    def all_gather(self, tensor: torch.Tensor, site: str) -> list[torch.Tensor]:
        return [given.clone() for given in self._exchange("all_gather", tensor, site)]

    def broadcast(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        return self._exchange("broadcast", tensor, site)[0].clone()

    def barrier(self, site: str) -> None:
        self._exchange("barrier", torch.empty(0), site)

    def close(self) -> None:
        self.group.leave(self.rank, "left the group")

    def _exchange(self, kind: str, tensor: torch.Tensor, site: str) -> list[torch.Tensor]:
        """Every rank's tensor, to be read before this rank's next call."""
        group = self.group
        call = Call(kind, site, tensor.dtype, tensor.shape)
        copy = tensor.clone()  # the caller may change its own as soon as it is back
        with group.changed:
            made = group.made[self.rank] + 1
            given = group.given[made % 2]
            given[self.rank] = call, copy
            group.made[self.rank] = made
            group.changed.notify_all()

            def settled() -> bool:
                return all(count >= made or rank in group.left for rank, count in enumerate(group.made))

            group.changed.wait_for(settled, group.timeout)
            for rank, count in enumerate(group.made):
                if count < made:
                    reason = group.left.get(rank, f"did not come within {group.timeout:g} s")
                    raise lost(rank, reason, self.rank, call)
            for rank in range(self.size):
                if given[rank][0] != call:
                    raise differ(rank, given[rank][0], self.rank, call)
            return [given[rank][1] for rank in range(self.size)]
