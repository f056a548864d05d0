"""Collectives: what they compute, in every kind, and what ranks hear of each other's faults."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
import rank_targets
import torch

from tpspec.errors import TpspecError
from tpspec.runtime.calls import RankLost
from tpspec.runtime.collectives import Alone, Counted, wire_bytes
from tpspec.runtime.launch import Kind, launch
from tpspec.runtime.rank_order import sum_in_rank_order

SIZES = [1, 2, 3, 4, 8]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["threads", "shared", "gloo"])
def test_operations_give_what_one_rank_computes_and_all_ranks_the_same_bits(kind: Kind, size: int):
    """Among them: ranks that dawdle and overwrite their tensors, strided tensors, inference mode."""
    launch(size, rank_targets.all_checks, (5 if kind == "gloo" else 200, kind != "gloo"), kind=kind)


@pytest.mark.parametrize("kind", ["threads", "shared"])
def test_tensors_larger_than_a_slot(kind: Kind):
    launch(3, rank_targets.more_than_a_slot, kind=kind)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
def test_a_sum_is_accumulated_in_rank_order_and_rounded_once(dtype: torch.dtype, size: int):
    parts = [rank_targets.tensor_of(rank, dtype, (1000,)) for rank in range(size)]
    wide = torch.float32 if dtype in {torch.bfloat16, torch.float16} else dtype
    expected = parts[0].to(wide)
    for part in parts[1:]:
        expected = expected + part.to(wide)
    assert torch.equal(sum_in_rank_order(parts), expected.to(dtype))


def test_small_addends_of_half_types_are_not_lost():
    parts = [torch.tensor([value], dtype=torch.bfloat16) for value in (256, 1, 1)]
    assert sum_in_rank_order(parts).item() == 258  # rounded at each addition: 256


def test_a_sum_leaves_its_parts_as_they_are():
    parts = [torch.ones(3), torch.ones(3), torch.ones(3)]
    sum_in_rank_order(parts)
    assert all(torch.equal(part, torch.ones(3)) for part in parts)


@pytest.mark.parametrize(
    ("kind", "end", "theirs"),
    [
        ("threads", "another shape", "[1024] at step 5"),
        ("threads", "another site", "[2048] at elsewhere"),
        ("shared", "another shape", "[1024] at step 5"),
    ],
)
def test_ranks_that_go_different_ways_are_told_which(kind: Kind, end: str, theirs: str):
    with pytest.raises(TpspecError, match="different ways") as raised:
        launch(2, rank_targets.steps_until, (1, end), kind=kind)
    ours = "all_reduce of float32 [2048] at step 5"
    assert f"all_reduce of float32 {theirs}" in raised.value.message
    assert ours in raised.value.message


@pytest.mark.parametrize("kind", ["threads", "shared"])
def test_a_rank_that_does_not_come_in_time_is_named(kind: Kind):
    with pytest.raises(RankLost, match=r"rank 1 did not come within 1 s; rank 0 .*all_reduce .*at step 5"):
        launch(2, rank_targets.steps_until, (1, "asleep"), kind=kind, timeout=1)


def test_gloo_says_where_it_waited_in_vain():
    with pytest.raises(RankLost, match=r"rank 0 was in all_reduce of float32 \[2048\] at step 5"):
        launch(2, rank_targets.steps_until, (1, "asleep"), kind="gloo", timeout=3)


ORPHANS = """
import os, time, torch
from tpspec.runtime.calls import RankLost
from tpspec.runtime.shared_memory import SharedMemory, create_segment

torch.set_num_threads(1)
segment = create_segment(3)
for rank in (1, 2):
    if os.fork() == 0:
        group = SharedMemory(segment, rank, 3)
        group.all_reduce(torch.ones(4), "first")
        if rank == 1:
            os._exit(0)  # and stays a zombie: nobody waits for it
        time.sleep(60)
group = SharedMemory(segment, 0, 3)
assert group.all_reduce(torch.ones(4), "first").tolist() == [3] * 4
started = time.monotonic()
try:
    group.all_reduce(torch.ones(4), "second")
except RankLost as lost:
    print(lost, flush=True)
assert time.monotonic() - started < 5
os.killpg(0, 9)
"""


def test_shared_memory_itself_notices_a_rank_that_ended():
    command = [sys.executable, "-c", ORPHANS]
    result = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    assert result.stderr == ""
    assert "rank 1 is gone, its process has ended; rank 0 waited for it in all_reduce" in result.stdout


def test_a_group_of_one_gives_back_what_it_gets():
    tensor = torch.arange(3)
    alone = Alone()
    assert alone.all_reduce(tensor, "site") is tensor
    assert alone.broadcast(tensor, "site") is tensor
    assert alone.all_gather(tensor, "site") == [tensor]


def test_calls_bytes_and_seconds_are_counted_by_kind_and_site():
    counted = Counted(Alone())
    counted.size = 4  # as if the tensors had gone round
    for _ in range(3):
        counted.all_reduce(torch.ones(8), "model.layers.0.mlp.down_proj")
    counted.all_reduce(torch.ones(2), "model.embed_tokens")
    counted.all_gather(torch.ones(5, dtype=torch.bfloat16), "lm_head")
    counted.barrier("end")
    layer = counted.tallies["all_reduce", "model.layers.0.mlp.down_proj"]
    assert (layer.calls, layer.payload) == (3, 96)
    assert layer.seconds > 0
    assert (counted.total("all_reduce").calls, counted.total("all_reduce").payload) == (4, 104)
    assert counted.wire_bytes() == {
        ("all_reduce", "model.layers.0.mlp.down_proj"): 144,
        ("all_reduce", "model.embed_tokens"): 12,
        ("all_gather", "lm_head"): 30,
        ("barrier", "end"): 0,
    }
    counted.reset()
    assert counted.total("all_reduce").calls == 0


@pytest.mark.parametrize("size", SIZES)
def test_bytes_on_the_wire_are_those_of_a_ring(size: int):
    assert wire_bytes("all_reduce", 16384, size) == pytest.approx(
        float(Fraction(2 * (size - 1), size) * 16384)
    )
    assert wire_bytes("all_gather", 100, size) == (size - 1) * 100


def test_bytes_of_a_70b_model_at_tp_8():
    assert 160 * wire_bytes("all_reduce", 8192 * 2, 8) == 4.375 * 2**20
    assert wire_bytes("all_gather", 128256 // 8 * 2, 8) == pytest.approx(219 * 1024, rel=1e-3)
    assert wire_bytes("all_gather", 8, 8) == 56
