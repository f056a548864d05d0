"""Memory that runs out, while a rank loads or decodes: every rank stops, and it is said what for."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import model_targets
import pytest
import torch
from stories import ONCE, continued, loaded
from tiny_ranks import tiny

from tpspec.errors import TpspecError
from tpspec.runtime.calls import RankLost
from tpspec.runtime.launch import launch
from tpspec.runtime.loading import Loading
from tpspec.runtime.out_of_memory import OutOfMemory, kills, out_of_memory


def raised_by_torch() -> RuntimeError:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(3 << 50, dtype=torch.uint8)
    return raised.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (MemoryError("std::bad_alloc"), "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0"), "1.5 GiB more"),
    ],
)
def test_errors_of_memory_are_known_whatever_they_are_called(error: Exception, words: str):
    found = out_of_memory(error)
    assert found is not None
    assert words in found.message


def test_what_torch_asked_for_is_told():
    found = out_of_memory(raised_by_torch())
    assert found is not None
    assert found.message == "out of memory: 3.07e+03 TiB more was asked for"
    assert "a smaller batch size" in str(found)


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError(errno.ENOENT, "No such file"), RankLost("out of memory")]
)
def test_other_errors_are_not_taken_for_it(error: Exception):
    assert out_of_memory(error) is None


def test_the_kernel_tells_how_often_it_killed_for_memory():
    assert kills() >= 0


def test_a_rank_without_memory_for_its_model_is_named(tmp_path: Path):
    out = tiny(tmp_path, "llama", vocab_size=100_000).out(2)  # an embedding of 24 MiB
    begun: list[float] = []
    with pytest.raises(OutOfMemory, match=r"rank 1: out of memory: 24\.4 MiB more was asked for"):
        launch(
            2,
            model_targets.load_without_memory,
            (Loading(out), 1),
            on_message=begun.append,
            preload=["tpspec.runtime.rank_model", "transformers.models.llama.modeling_llama"],
        )
    assert time.monotonic() - begun[0] < 5


@contextmanager
def memory_for(more: int) -> Iterator[None]:
    """This process may take so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_threads_without_memory_for_a_batch_say_what_the_weights_take():
    model = loaded(2)
    assert model.generate(ONCE, max_new_tokens=2)[0].tokens == continued(ONCE, 2)
    with memory_for(60 << 20), pytest.raises(TpspecError) as raised:
        model.generate([(5,) * 500] * 800, batch_size=800)
    assert str(raised.value).startswith("out of memory: ")
    assert "  the weights of a rank take 509 KiB; ranks: 2" in str(raised.value)
    assert model.generate(ONCE, max_new_tokens=2)[0].tokens == continued(ONCE, 2)  # a smaller batch goes on
