"""What tests launch as ranks that have modules or models: importable by name, for a rank's process."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tpspec.runtime.attach import Attached
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.loading import Loading
from tpspec.sites import Site


def reduced_linear(group: Collectives) -> list[float]:
    """A module with a reduce, which gives rank + 1 on each rank: what comes out of it on this one."""
    module = torch.nn.Identity()
    Attached({"down": module}, [Site("reduce", "down")], group)
    output: list[float] = module(torch.full((2,), group.rank + 1.0)).tolist()
    return output


def load_without_memory(group: Collectives, loading: Loading, poor: int) -> Iterator[float]:
    """Loads every rank, of which one may take 12 MiB at most; yields the time before."""
    yield time.monotonic()
    if group.rank == poor:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (12 << 20),) * 2)
    loading.load(group)
    group.barrier("loaded")
