"""What `all_reduce.py` launches as each rank: importable by name, as a rank's process needs it."""

from __future__ import annotations

import time
from statistics import median

import torch

from tpspec.runtime.collectives import Collectives


def microseconds(group: Collectives, calls: dict[int, int]) -> dict[int, float]:
    """The median time of an all-reduce of bf16, by its KiB; `calls` says how often each is made."""
    return {kib: _microseconds(group, kib * 512, count) for kib, count in calls.items()}


def _microseconds(group: Collectives, length: int, calls: int) -> float:
    tensor = torch.ones(1, 1, length, dtype=torch.bfloat16)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        group.all_reduce(tensor, "model.layers.0.mlp.down_proj")
        times.append(time.perf_counter() - start)
    return median(times) * 1e6
