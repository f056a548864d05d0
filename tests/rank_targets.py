"""What tests launch as ranks: importable by name, as a rank's process needs it."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch

from tpspec.errors import Finding, TpspecError
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.shared_memory import SLOT

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 0, 4), (1, 1, 2048), (1, 70_003))


def all_checks(group: Collectives, rounds: int, in_rank_order: bool) -> None:
    every_operation(group, in_rank_order)
    strided_and_inferring(group)
    if group.size > 1:  # else a result is what was given
        racing(group, rounds)


def tensor_of(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 100
    return values.to(dtype)


def summed(tensors: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.float32 if tensors[0].dtype.is_floating_point else torch.int64
    total = torch.zeros(tensors[0].shape, dtype=wide)
    for tensor in tensors:
        total += tensor.to(wide)
    return total.to(tensors[0].dtype)


def bits(tensors: list[torch.Tensor]) -> torch.Tensor:
    digest = sha256(b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def every_operation(group: Collectives, in_rank_order: bool) -> None:
    """Compares each operation with what this rank computes by itself."""
    sums = []
    for dtype in DTYPES:
        for shape in SHAPES:
            given = [tensor_of(rank, dtype, shape) for rank in range(group.size)]
            mine = given[group.rank].clone()
            total = group.all_reduce(mine, "a sum")
            assert torch.equal(mine, given[group.rank])
            near = not in_rank_order and dtype.is_floating_point
            torch.testing.assert_close(total, summed(given), rtol=1e-2 * near, atol=1e-3 * near)
            sums.append(total)
            for theirs, expected in zip(group.all_gather(mine, "a gathering"), given, strict=True):
                torch.testing.assert_close(theirs, expected, rtol=0, atol=0)
            root = group.broadcast(mine, "a broadcast")
            torch.testing.assert_close(root, given[0], rtol=0, atol=0)
            group.barrier("a barrier")
    digest = bits(sums)
    assert all(torch.equal(digest, theirs) for theirs in group.all_gather(digest, "bits"))


def more_than_a_slot(group: Collectives) -> None:
    """Every operation on tensors that go through shared memory in pieces, the last one small."""
    for dtype in DTYPES:
        given = [tensor_of(rank, dtype, (SLOT // dtype.itemsize + 5, 1)) for rank in range(group.size)]
        mine = given[group.rank]
        assert torch.equal(group.all_reduce(mine, "large"), summed(given))
        assert torch.equal(group.broadcast(mine, "large"), given[0])
        assert all(map(torch.equal, group.all_gather(mine, "large"), given))


def racing(group: Collectives, rounds: int) -> None:
    """Ranks that dawdle at random, and overwrite what they gave and what they got as soon as they can."""
    dawdle = random.Random(group.rank)
    generator = torch.Generator().manual_seed(0)  # one sequence on all ranks
    for step in range(rounds):
        length = int(torch.randint(1, 3000, (1,), generator=generator))
        mine = torch.full((length,), step + group.rank, dtype=torch.int64)
        if dawdle.random() < 0.2:
            time.sleep(dawdle.random() / 500)
        total = group.all_reduce(mine, "race")
        mine.fill_(-1)
        assert torch.equal(total, torch.full_like(total, sum(step + rank for rank in range(group.size))))
        total.fill_(-2)
        parts = group.all_gather(torch.tensor([group.rank * step]), "race")
        assert [int(part) for part in parts] == [rank * step for rank in range(group.size)]
        for part in parts:
            part.fill_(-3)
        root = group.broadcast(torch.tensor([step if group.rank == 0 else -4]), "race")
        assert int(root) == step
        root.fill_(-5)


def strided_and_inferring(group: Collectives) -> None:
    """Tensors that are not contiguous, and a site used under inference mode and outside it."""
    mine = (torch.arange(12.0).view(3, 4) + group.rank).t()
    expected = group.size * torch.arange(12.0).view(3, 4).t() + sum(range(group.size))
    for inferring in (True, False, True):
        with torch.inference_mode(inferring):
            assert torch.equal(group.all_reduce(mine, "strided"), expected)
            assert torch.equal(group.broadcast(mine, "strided"), torch.arange(12.0).view(3, 4).t())
            assert torch.equal(group.all_gather(mine, "strided")[group.rank], mine)


def streaming(group: Collectives, count: int) -> Iterator[tuple[int, torch.Tensor]]:
    for step in range(count):
        yield step, group.all_reduce(torch.tensor([step]), "step")
    return torch.full((1 << 20,), float(group.rank + 1))


def own_process(group: Collectives, module: str) -> dict[str, object]:
    sys.stdout.write("a rank speaks\n")
    return {
        "loaded": module in sys.modules,
        "server threads": len([*Path(f"/proc/{os.getppid()}/task").iterdir()]),
        "cuda": torch.cuda.is_initialized(),
        "torch threads": torch.get_num_threads(),
        "stdin": sys.stdin.read(),
        "rank": group.rank,
    }


def steps_until(group: Collectives, rank: int, end: str) -> Iterator[float]:
    """All-reduces for ever, but for one rank, which ends as told; yields the time of each."""
    step = 0
    while True:
        yield time.monotonic()
        group.all_reduce(torch.ones(2048), f"step {step}")
        step += 1
        if group.rank == rank and step == 5:
            ENDS[end](group)


def raise_fault(group: Collectives) -> None:
    finding = Finding("model.norm", "3 is not 4", remedy="make it 4")
    raise TpspecError(f"no good on {group.rank}", [finding])


ENDS = {
    "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "fault": raise_fault,
    "bug": lambda _: {}["missing key"],
    "no file": lambda _: Path("/no/such/file").read_bytes(),
    "memory": lambda _: torch.empty(1 << 60, dtype=torch.uint8),
    "exit": lambda _: os._exit(3),
    "asleep": lambda _: time.sleep(60),
    "another shape": lambda group: group.all_reduce(torch.ones(1024), "step 5"),
    "another site": lambda group: group.all_reduce(torch.ones(2048), "elsewhere"),
}


def pids_then_steps(group: Collectives) -> Iterator[list[int]]:
    pids = group.all_gather(torch.tensor([os.getpid()]), "pids")
    yield [int(pid) for pid in pids]
    yield from steps_until(group, -1, "never")
