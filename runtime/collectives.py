"""What ranks need of each other, whoever carries it: threads, shared memory or torch.distributed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from tpspec.planning.formulas import WIRE

if TYPE_CHECKING:
    from torch import Tensor


class Collectives(Protocol):
    """The collectives of one rank, for inference: nothing here is differentiated.

    Every rank makes the same calls in the same order, with tensors of one shape and type. `site` says
    where a call is made (a module's name): it is what is counted, and what an error names. A result
    is the caller's own; only with one rank may it be the tensor that was given. Where another rank
    failed or did not come, a call raises `RankLost`; after an error the group is of no more use.
    """

    rank: int
    size: int

    def all_reduce(self, tensor: Tensor, site: str) -> Tensor:
        """The sum over ranks; half types are added in fp32 and rounded once. All ranks get the same bits."""

    def all_gather(self, tensor: Tensor, site: str) -> list[Tensor]:
        """Every rank's tensor, in rank order."""

    def broadcast(self, tensor: Tensor, site: str) -> Tensor:
        """Rank 0's tensor; the others give one of its shape and type."""

    def barrier(self, site: str) -> None:
        """Returns once every rank has called it."""

    def close(self) -> None:
        """Leaves the group."""


class Alone:
    """The collectives of a group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor, site: str) -> Tensor:  # noqa: ARG002
        return tensor

    def all_gather(self, tensor: Tensor, site: str) -> list[Tensor]:  # noqa: ARG002
        return [tensor]

    def broadcast(self, tensor: Tensor, site: str) -> Tensor:  # noqa: ARG002
        return tensor

    def barrier(self, site: str) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Tally:
    """Calls of one kind at one site: how many, the bytes that this rank gave, the seconds spent.

    The seconds hold the wait for slower ranks.
    """

    calls: int = 0
    payload: int = 0
    seconds: float = 0.0


def wire_bytes(kind: str, payload: int, size: int) -> float:
    """Bytes that each of `size` ranks sends, on average, for `payload` bytes given to a collective.

    As plans predict them: the count of the ring algorithms, and the least possible.
    """
    return WIRE[kind](payload, size) if kind in WIRE else 0.0


class Counted:
    """Collectives that count what passes through them, by kind and site."""

    def __init__(self, inner: Collectives) -> None:
        self.inner = inner
        self.rank = inner.rank
        self.size = inner.size
        self.tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)

    def all_reduce(self, tensor: Tensor, site: str) -> Tensor:
        started = perf_counter()
        result = self.inner.all_reduce(tensor, site)
        self._count("all_reduce", site, tensor.nbytes, started)
        return result

    def all_gather(self, tensor: Tensor, site: str) -> list[Tensor]:
        started = perf_counter()
        result = self.inner.all_gather(tensor, site)
        self._count("all_gather", site, tensor.nbytes, started)
        return result

    def broadcast(self, tensor: Tensor, site: str) -> Tensor:
        started = perf_counter()
        result = self.inner.broadcast(tensor, site)
        self._count("broadcast", site, tensor.nbytes, started)
        return result

    def barrier(self, site: str) -> None:
        started = perf_counter()
        self.inner.barrier(site)
        self._count("barrier", site, 0, started)

    def close(self) -> None:
        self.inner.close()

    def _count(self, kind: str, site: str, payload: int, started: float) -> None:
        tally = self.tallies[kind, site]
        tally.calls += 1
        tally.payload += payload
        tally.seconds += perf_counter() - started

    def total(self, kind: str) -> Tally:
        """All sites of one kind together."""
        tallies = [tally for (counted, _), tally in self.tallies.items() if counted == kind]
        return Tally(
            sum(tally.calls for tally in tallies),
            sum(tally.payload for tally in tallies),
            sum(tally.seconds for tally in tallies),
        )

    def wire_bytes(self) -> dict[tuple[str, str], float]:
        """Bytes that this rank sends on the wire, by kind and site."""
        return {
            (kind, site): wire_bytes(kind, tally.payload, self.size)
            for (kind, site), tally in self.tallies.items()
        }

    def reset(self) -> None:
        """Starts counting anew."""
        self.tallies.clear()
