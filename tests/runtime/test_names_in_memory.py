"""From names on disk to names in memory, and from stored tensors to the parameters made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tpspec.language.registry import spec_from_file
from tpspec.runtime.memory_names import MemoryNames
from tpspec.runtime.rank_file import RankFile
from tpspec.safetensors_header import read_header

SPEC = """\
spec: 1
architecture: spec
prefixes: ["", {stored: model.text., for: model.}]
ranges: {part: 2}
modules: {model.norm: replicated}
memory:
  - {split: model.qk, into: "model.{q,k}"}
  - {stack: "model.{gate,up}", into: model.gate_up}
  - {stack: "model.table.shard_{part}", over: part, flat: true, into: model.table}
"""


@pytest.fixture
def names(tmp_path: Path) -> MemoryNames:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return MemoryNames(spec_from_file(path), nn.Module())


def test_a_stored_tensor_may_be_several_parameters(names: MemoryNames) -> None:
    assert names.parts("model.qk") == ["model.q", "model.k"]
    assert names.parts("model.text.qk") == ["model.text.q", "model.text.k"]
    assert names.parts("model.o") == ["model.o"]


def test_several_stored_tensors_may_be_one_parameter(names: MemoryNames) -> None:
    stored = ["model.up", "model.table.shard_1", "model.gate", "model.table.shard_0", "model.norm"]
    alone, stacks = names.stacked(stored)
    assert alone == ["model.norm"]
    assert {stack.into: stack.names() for stack in stacks} == {
        "model.gate_up": [["model.gate", "model.up"]],
        "model.table": [["model.table.shard_0"], ["model.table.shard_1"]],
    }


@pytest.mark.parametrize("order", [["a", "b", "c"], ["b", "a", "c"]])
def test_tensors_are_joined_wherever_they_lie(tmp_path: Path, order: list[str]) -> None:
    tensors = {name: torch.arange(6.0).reshape(3, 2) + 10 * i for i, name in enumerate(order)}
    save_file(tensors, tmp_path / "rank.safetensors")
    file = RankFile(read_header(tmp_path / "rank.safetensors"))
    joined = file.join(["a", "b"])
    assert torch.equal(joined, torch.cat([tensors["a"], tensors["b"]]))
