"""`--pad` and `tpspec pad`, as people see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "models"
LLAMA_70B = MODELS / "Meta-Llama-3-70B" / "config.json"
STORIES = MODELS / "stories260k"


def test_a_size_that_padding_would_make_fit_is_told_so(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    assert "   or: --pad\n" in tpspec("validate", LLAMA_70B, "--tp", "6").out
    assert "--pad" not in tpspec("validate", LLAMA_70B, "--tp", "8").out
    assert tpspec("convert", STORIES, tmp_path / "out", "--tp", "3").err.endswith("   or: --pad\n")


def test_llama_70b_for_6_ranks_costs_cache_or_weights(tpspec: Callable[..., Any]) -> None:
    costs = {}
    for order in ("kv", "weights"):
        ran = tpspec("validate", LLAMA_70B, "--tp", "6", "--pad", order, "--json")
        assert ran.status == 0
        (size,) = json.loads(ran.out)["sizes"]
        padding = size["padding"]
        held = {axis["axis"]: (axis["held"], axis["zeros"]) for axis in padding["axes"]}
        costs[order] = held, padding["weight_bytes"] >> 20, padding["cache"]["per_token"] >> 10
    matrices = 2 * 80 * 8192 * 2  # bytes of the rows, or columns, in all layers that one unit brings per row
    assert costs["kv"][0] == {"q": (96, 32), "kv": (12, 4), "ffn": (28674, 2)}
    assert costs["kv"][1] == matrices * (32 + 4) * 128 + matrices * 3 // 2 * 2 >> 20
    assert costs["kv"][2] == 480 - 320
    assert costs["weights"][0] == {"q": (72, 8), "kv": (18, 2), "ffn": (28674, 2)}
    assert costs["weights"][1] == matrices * (8 + 10) * 128 + matrices * 3 // 2 * 2 >> 20
    assert costs["weights"][2] == 720 - 320


def test_convert_says_what_was_padded_and_what_it_costs(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    ran = tpspec("convert", STORIES, tmp_path / "out", "--tp", "5", "--pad")
    assert ran.status == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "num_attention_heads = 8 10 held 2 of them zeros" in lines
    assert "num_key_value_heads = 4 5 held 1 of them zeros" in lines
    assert any(line.startswith("zeros and copies cost ") for line in lines)
    assert tpspec("verify", tmp_path / "out", "--against", STORIES).status == 0
    tpspec("merge", tmp_path / "out", tmp_path / "back")
    name = "model.safetensors"
    assert (tmp_path / "back" / name).read_bytes() == (STORIES / name).read_bytes()


def test_an_order_that_is_none_is_bad_usage(tpspec: Callable[..., Any]) -> None:
    ran = tpspec("validate", LLAMA_70B, "--tp", "6", "--pad", "most")
    assert ran.status == 2
    assert "'most' is not one of 'kv', 'weights'" in ran.err


def test_pad_writes_a_checkpoint_that_needs_no_padding(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    ran = tpspec("pad", STORIES, tmp_path / "out", "--tp", "3")
    assert ran.status == 0
    assert "num_attention_heads = 8" in ran.out
    assert tpspec("validate", tmp_path / "out", "--tp", "3", "--quiet").status == 0
    report = json.loads(
        tpspec("pad", STORIES, tmp_path / "json", "--tp", "3", "--first", "weights", "--json").out
    )
    assert report["padding"]["order"] == "weights"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_what_divides_is_not_padded(tpspec: Callable[..., Any], tmp_path: Path, tp: int) -> None:
    ran = tpspec("pad", STORIES, tmp_path / "out", "--tp", tp)
    assert ran.status == 1
    assert f"tp={tp} divides this model" in ran.err
