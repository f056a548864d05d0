"""Ranks among themselves: one choice of tokens, one tp, and none that waits for another that is at fault."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from stories import ONCE, loaded, sharded

from tpspec.errors import TpspecError
from tpspec.runtime import load
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.complete import complete
from tpspec.runtime.launch import launch
from tpspec.runtime.loading import Loading
from tpspec.runtime.prove import run_in_threads
from tpspec.runtime.rank_process import drive
from tpspec.runtime.request import Request, Sampling

RANK_1 = "model-rank-00001-of-00002.safetensors"


def test_ranks_with_other_seeds_draw_the_same_tokens():
    """(openai/gpt-oss#270, huggingface/transformers#36634) Each asks for its own: rank 0's counts."""
    directory = sharded(4)

    def run(group: Collectives) -> tuple[int, ...]:
        request = Request((ONCE,), max_new_tokens=30, sampling=Sampling(1.0, seed=group.rank + 5))
        outcome = drive(complete(group, Loading(directory), request, check_ranks=True), lambda _: None)
        tokens: tuple[int, ...] = outcome.completions[0].tokens
        return tokens

    drawn = run_in_threads(4, run)
    assert len(set(drawn)) == 1
    assert drawn[0] == loaded(1).generate(ONCE, max_new_tokens=30, temperature=1.0, seed=5)[0].tokens


def corrupted(tmp_path: Path) -> Path:
    """A directory for two ranks in which one byte of rank 1's file is another."""
    out = shutil.copytree(sharded(2), tmp_path / "corrupted")
    data = bytearray((out / RANK_1).read_bytes())
    data[-1] ^= 1
    (out / RANK_1).write_bytes(data)
    return out


def test_a_corrupt_rank_ends_all_of_torchruns(tmp_path: Path):
    """(sgl-project/sglang#5457) Rank 1 cannot load; rank 0 waited for it, silent, until somebody looked."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tpspec", "run", corrupted(tmp_path), "--prompt", ONCE]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert f"error: rank 1 cannot be loaded\n  {RANK_1}: has the hash" in ran.stderr


def test_a_corrupt_rank_ends_all_threads(tmp_path: Path):
    """(sgl-project/sglang#5457) Where each rank checks its own file, rank 0 is already waiting for rank 1."""
    request = Request((ONCE,))
    with pytest.raises(TpspecError, match=f"(?s)rank 1 cannot be loaded.*{RANK_1}"):
        launch(2, complete, (Loading(corrupted(tmp_path)), request, False), kind="threads")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank")]


def test_a_rank_that_fails_in_the_middle_of_a_text_ends_the_others():
    """(sgl-project/sglang#5457) Its own error is raised, not that of those who lost it."""
    model = load(sharded(4), threads=True)
    passes = 0

    def fail(module: torch.nn.Module, args: object) -> None:
        nonlocal passes
        del module, args
        passes += 1
        if passes == 5:
            raise TpspecError("a fault of rank 2")

    model.ranks[2].model.model.layers[3].register_forward_pre_hook(fail)
    with pytest.raises(TpspecError, match="a fault of rank 2"):
        model.generate(ONCE, max_new_tokens=50)
    assert passes == 5


def test_a_directory_of_another_tp_is_refused_by_each_rank(monkeypatch: pytest.MonkeyPatch):
    """(huggingface/transformers#48307, sgl-project/sglang#3320) Before they meet: nobody waits."""
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "nowhere.invalid",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        TpspecError, match=re.escape("was cut for tp 4, not for tp 2\n  → use 4 ranks, or cut it again")
    ):
        load(sharded(4))
