"""A collective call in words that ranks can compare, and what goes wrong when they do not meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpspec.errors import TpspecError

if TYPE_CHECKING:
    import torch


TIMEOUT = 600.0
"""Seconds that a rank waits for the others in one call."""


class RankLost(TpspecError):  # noqa: N818 - it is what happened
    """Another rank failed, ended or did not come; whoever hears both prefers that rank's own error."""


class Call(NamedTuple):
    """What a rank calls, and with what."""

    kind: str
    site: str
    dtype: torch.dtype
    shape: torch.Size

    def __str__(self) -> str:
        of = (
            f" of {str(self.dtype).removeprefix('torch.')} {list(self.shape)}"
            if self.kind != "barrier"
            else ""
        )
        return f"{self.kind}{of} at {self.site}"


def lost(peer: int, reason: str, rank: int, call: object) -> RankLost:
    """The error of a rank that waits in vain."""
    return RankLost(f"rank {peer} {reason}; rank {rank} waited for it in {call}")


def differ(peer: int, theirs: object, rank: int, ours: object) -> TpspecError:
    """The error of ranks that do not make the same call."""
    return TpspecError(f"the ranks went different ways: rank {peer} makes {theirs}, rank {rank} {ours}")


def of_rank(rank: int, error: TpspecError) -> TpspecError:
    """A rank's error as the launcher raises it."""
    named = error.message.startswith(f"rank {rank} ")
    message = error.message if named else f"rank {rank}: {error.message}"
    return type(error)(message, error.findings, error.remedy)
