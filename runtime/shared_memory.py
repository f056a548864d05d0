"""Collectives among the ranks of one machine, through memory that all of them map.

The segment is a memfd, passed by descriptor: it needs no /dev/shm (64 MiB in a container), has no name
and is gone with the last process. It holds, for p ranks:

    p × 64 bytes        a rank's line: calls made, fingerprint of its latest even call, of its latest odd call
    2 × p × 256 bytes   the latest even and odd call of each rank in words, for errors
    2 × p × SLOT bytes  the tensors of even and odd calls, one slot per rank

A call copies the tensor into the rank's slot, then counts itself in the rank's line, and waits until all
ranks have counted as many. x86-64 keeps stores in order, so that who sees the count sees the tensor.
Even and odd calls use slots of their own: who makes call k + 2 has seen everyone make call k + 1, so nobody
is left reading the slots of call k.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from tpspec.runtime.calls import TIMEOUT, Call, differ, lost
from tpspec.runtime.rank_order import sum_in_rank_order

LINE = 64
WORDS = LINE // 8
TEXT = 256
SLOT = 2 * 1024 * 1024
"""A larger tensor goes in pieces."""
SHARES_FROM = 128 * 1024
"""Bytes from which three ranks or more divide the additions, for the price of a second exchange."""

SPINS, CROWDED_SPINS = 5_000, 20
"""Looks at a rank's line before it sleeps between them, 0.5 µs each; fewer where ranks share cores."""
NAPS = 50e-6, 2e-3
"""The first and the longest of these sleeps, in seconds."""


def create_segment(size: int) -> int:
    """Makes the memory for `size` ranks and returns its descriptor, which the ranks inherit."""
    segment = os.memfd_create("tpspec")
    os.ftruncate(segment, _slots_start(size) + 2 * size * SLOT)
    return segment


def _slots_start(size: int) -> int:
    header = size * LINE + 2 * size * TEXT
    return -(-header // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call made ready: its words, their fingerprint, and all ranks' slots as such tensors."""

    text: bytes
    fingerprint: int
    slots: tuple[list[torch.Tensor], list[torch.Tensor]]


class SharedMemory:
    """The collectives of one rank over a shared segment; every rank is a process of its own."""

    def __init__(self, segment: int, rank: int, size: int, timeout: float = TIMEOUT) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._segment = segment
        self._spins = SPINS if size <= len(os.sched_getaffinity(0)) else CROWDED_SPINS
        memory = mmap.mmap(segment, 0)
        self._words = memoryview(memory)[: size * LINE].cast("Q")
        self._texts = memoryview(memory)[size * LINE :]
        with torch.inference_mode(mode=False):  # for use under inference mode and outside it
            self._slots = torch.frombuffer(memory, dtype=torch.uint8, offset=_slots_start(size))
        self._prepare = lru_cache(1024)(self._prepared)
        self._peers = [peer for peer in range(size) if peer != rank]
        # The kernel drops a lock when its process ends, however it ends: whose lock is free is gone.
        fcntl.lockf(segment, fcntl.LOCK_EX, 1, rank)
        self._made = 1  # 0 is a rank that has not come yet
        self._words[rank * WORDS] = 1

    def all_reduce(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        if tensor.nbytes > SLOT:
            return self._in_pieces(self.all_reduce, tensor, site)
        if self.size > 2 and tensor.nbytes >= SHARES_FROM:
            return self._reduce_in_shares(tensor, site)
        return sum_in_rank_order(self._exchange("all_reduce", tensor, site))

    def all_gather(self, tensor: torch.Tensor, site: str) -> list[torch.Tensor]:
        if tensor.nbytes <= SLOT:
            return [slot.clone() for slot in self._exchange("all_gather", tensor, site)]
        pieces = [self.all_gather(piece, site) for piece in _pieces(tensor)]
        return [torch.cat(parts).view(tensor.shape) for parts in zip(*pieces, strict=True)]

    def broadcast(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        if tensor.nbytes <= SLOT:
            return self._exchange("broadcast", tensor, site)[0].clone()
        return self._in_pieces(self.broadcast, tensor, site)

    def barrier(self, site: str) -> None:
        self._exchange("barrier", torch.empty(0), site)

    def close(self) -> None:
        os.close(self._segment)

    def _reduce_in_shares(self, tensor: torch.Tensor, site: str) -> torch.Tensor:
        """Each rank adds up one share of the tensor for all; of one size, so the last may overlap."""
        length = tensor.numel()
        share = -(-length // self.size)
        starts = [min(rank * share, length - share) for rank in range(self.size)]
        windows = [slice(start, start + share) for start in starts]
        given = self._exchange("all_reduce", tensor, site)
        mine = sum_in_rank_order([slot.view(-1)[windows[self.rank]] for slot in given])
        total = torch.empty(length, dtype=tensor.dtype)
        for window, part in zip(windows, self._exchange("all_reduce", mine, site), strict=True):
            total[window] = part
        return total.view(tensor.shape)

    def _in_pieces(
        self, call: Callable[[torch.Tensor, str], torch.Tensor], tensor: torch.Tensor, site: str
    ) -> torch.Tensor:
        return torch.cat([call(piece, site) for piece in _pieces(tensor)]).view(tensor.shape)

    def _exchange(self, kind: str, tensor: torch.Tensor, site: str) -> list[torch.Tensor]:
        """Every rank's tensor, to be read before this rank's next call."""
        call = self._prepare(kind, site, tensor.dtype, tensor.shape)
        words, rank = self._words, self.rank
        self._made = made = self._made + 1
        half = made & 1
        slots = call.slots[half]
        slots[rank].copy_(tensor)
        self._texts[self._text(rank, half)] = call.text
        words[rank * WORDS + 1 + half] = call.fingerprint
        words[rank * WORDS] = made  # last: it says that the rest is there
        for peer in self._peers:
            if words[peer * WORDS] < made:
                self._wait(peer, made, call)
            if words[peer * WORDS + 1 + half] != call.fingerprint:
                theirs = bytes(self._texts[self._text(peer, half)])
                raise differ(peer, _words(theirs), rank, _words(call.text))
        return slots

    def _wait(self, peer: int, made: int, call: Prepared) -> None:
        words, place = self._words, peer * WORDS
        for _ in range(self._spins):
            os.sched_yield()
            if words[place] >= made:
                return
        nap, longest = NAPS
        deadline = time.monotonic() + self.timeout
        while words[place] < made:
            reason = ""
            if self._gone(peer):
                reason = "is gone, its process has ended"
            elif time.monotonic() > deadline:
                reason = f"did not come within {self.timeout:g} s"
            if reason and words[place] < made:  # its last call may have come just before its end
                raise lost(peer, reason, self.rank, _words(call.text))
            time.sleep(nap)
            nap = min(2 * nap, longest)

    def _gone(self, peer: int) -> bool:
        if not self._words[peer * WORDS]:
            return False
        try:
            fcntl.lockf(self._segment, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, peer)
        except OSError:
            return False
        fcntl.lockf(self._segment, fcntl.LOCK_UN, 1, peer)
        return True

    def _text(self, rank: int, half: int) -> slice:
        start = (2 * rank + half) * TEXT
        return slice(start, start + TEXT)

    def _prepared(self, kind: str, site: str, dtype: torch.dtype, shape: torch.Size) -> Prepared:
        text = str(Call(kind, site, dtype, shape)).encode()
        length = shape.numel() * dtype.itemsize
        with torch.inference_mode(mode=False):
            even, odd = (
                [
                    self._slots[start : start + length].view(dtype).view(shape)
                    for start in range(half * self.size * SLOT, (half + 1) * self.size * SLOT, SLOT)
                ]
                for half in (0, 1)
            )
        return Prepared(text[:TEXT].ljust(TEXT, b"\0"), zlib.crc32(text), (even, odd))


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    yield from tensor.reshape(-1).split(SLOT // tensor.itemsize)


def _words(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")
