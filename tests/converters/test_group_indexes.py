"""Which group each input belongs to is read before a quantized checkpoint is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import quantizers
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from tpspec.cli.app import app

CONFIG = {"model_type": "two_matrices", "hidden_size": 64, "intermediate_size": 256}
SPEC = """
spec: 1
architecture: two_matrices
model_types: [two_matrices]
hidden: hidden_size
axes:
  ffn: {units: intermediate_size}
modules:
  up:   {column: ffn}
  down: {row: ffn}
"""


def converted(tmp_path: Path, changed: Any = None, *, ordered: bool = False, **settings: Any) -> str:
    """What convert says of groups of 32; `changed` is the group that input 40 of `down` is said to be of."""
    by = quantizers.gptq(4, ordered=ordered)
    shapes = {"up": (256, 64), "down": (64, 256)}
    parts = {name: by.quantize(torch.randn(shape))[0] for name, shape in shapes.items()}
    tensors = {f"{name}.{part}": each for name, of in parts.items() for part, each in of.items()}
    if changed is not None:
        tensors["down.g_idx"][40] = changed
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    said = {key: value for key, value in {**by.settings, **settings}.items() if value != "missing"}
    (source / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": said}))
    (tmp_path / "spec.yaml").write_text(SPEC)
    save_file(tensors, source / "model.safetensors")
    command = ["convert", str(source), str(out), "--tp", "2", "--spec", str(tmp_path / "spec.yaml"), "-q"]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code == 0) == out.exists()
    return str(result.exception or "")


@pytest.mark.parametrize("ordered", [False, True])
def test_groups_that_are_as_the_config_says_are_cut(ordered: bool, tmp_path: Path) -> None:
    assert converted(tmp_path, ordered=ordered) == ""


@pytest.mark.parametrize("said", [False, None, "missing"])
def test_activation_order_that_the_config_does_not_say_is_refused(said: Any, tmp_path: Path) -> None:
    output = converted(tmp_path, ordered=True, desc_act=said)
    assert "down.g_idx: input 0 is of group" in output
    assert "but without desc_act it is of group 0 // 32 = 0 (model.safetensors)" in output
    assert 'set "desc_act": true' in output


@pytest.mark.parametrize(("ordered", "number"), [(False, 99), (True, 8), (True, -1)])
def test_a_group_that_there_is_not_is_refused(ordered: bool, number: int, tmp_path: Path) -> None:
    output = converted(tmp_path, number, ordered=ordered)
    assert f"down.g_idx: input 40 is of group {number}, and the groups are 0 to 7" in output


def test_a_single_input_of_another_group_is_refused(tmp_path: Path) -> None:
    output = converted(tmp_path, 2)
    assert "input 40 is of group 2, but without desc_act it is of group 40 // 32 = 1" in output


@pytest.mark.parametrize("said", ["true", 1, "false", 0])
def test_activation_order_is_true_or_false_and_nothing_else(said: Any, tmp_path: Path) -> None:
    assert f"desc_act = {said!r} is not true or false" in converted(tmp_path, desc_act=said)


def test_what_has_another_shape_is_not_missed_besides(tmp_path: Path) -> None:
    output = converted(tmp_path, group_size=64)
    assert "down.qzeros: shape [8, 8] has 8 in dimension 0, but config.json makes it 4" in output
    assert "but no" not in output
