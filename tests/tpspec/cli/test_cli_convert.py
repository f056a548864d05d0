"""`tpspec convert`, `verify` and `merge`, as people see them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cut_checkpoints import contents

STORIES = Path(__file__).parents[2] / "models" / "stories260k"
Tpspec = Callable[..., Any]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_stories260k_goes_round_with_the_same_sha256(tpspec: Tpspec, tmp_path: Path, tp: int) -> None:
    ran = tpspec("convert", STORIES, tmp_path / "cut", "--tp", tp)
    assert ran.status == 0
    assert re.match(rf"wrote {tp} files, .* in .* s \(.*/s\)\n", ran.out)
    assert ran.out.endswith(f"to check it: tpspec verify {tmp_path / 'cut'}\n")
    ran = tpspec("verify", tmp_path / "cut", "--against", STORIES)
    assert ran.status == 0
    assert "is sound" in ran.out
    ran = tpspec("merge", tmp_path / "cut", tmp_path / "merged")
    assert ran.out.endswith("each has the same bytes as the original\n")
    assert hashes(tmp_path / "merged") == hashes(STORIES)


def test_8_to_2_to_4_ranks_is_the_same_as_4_at_once(tpspec: Tpspec, tmp_path: Path) -> None:
    tpspec("convert", STORIES, tmp_path / "direct", "--tp", 4)
    tpspec("convert", STORIES, tmp_path / "two", "--tp", 2)
    tpspec("convert", tmp_path / "two", tmp_path / "one", "--tp", 1)
    assert tpspec("convert", tmp_path / "one", tmp_path / "four", "--tp", 4).status == 0
    assert contents(tmp_path / "four") == contents(tmp_path / "direct")


def test_a_tp_that_does_not_fit_is_refused_before_anything_is_written(tpspec: Tpspec, tmp_path: Path) -> None:
    ran = tpspec("convert", STORIES, tmp_path / "cut", "--tp", 8)
    assert ran.status == 1
    assert ran.err.count("172 % 8 = 4") == 3
    assert not (tmp_path / "cut").exists()


def test_json_says_what_was_written_and_what_is_missing(tpspec: Tpspec, tmp_path: Path) -> None:
    command = ("convert", STORIES, tmp_path / "cut", "--tp", 4, "--json")
    report = json.loads(tpspec(*command, "--ranks", "0,2-3").out)
    assert report["written"] == [f"model-rank-0000{rank}-of-00004.safetensors" for rank in (0, 2, 3)]
    assert report["missing"] == ["model-rank-00001-of-00004.safetensors"]
    assert json.loads(tpspec(*command).out)["missing"] == []
    report = json.loads(tpspec("verify", tmp_path / "cut", "--json").out)
    assert (report["ok"], report["findings"]) == (True, [])
    report = json.loads(tpspec("merge", tmp_path / "cut", tmp_path / "merged", "--json").out)
    assert report["losses"] == []


def test_ranks_that_are_there_and_ranks_that_are_missing_are_named(tpspec: Tpspec, tmp_path: Path) -> None:
    command = ("convert", STORIES, tmp_path / "cut", "--tp", 2, "--ranks", "1")
    assert "is complete when these are there: model-rank-00000-of-00002.safetensors" in tpspec(*command).out
    again = tpspec(*command)
    assert again.status == 0
    assert "model-rank-00001-of-00002.safetensors was there already" in again.out


def test_quiet_prints_nothing(tpspec: Tpspec, tmp_path: Path) -> None:
    for command in (
        ("convert", STORIES, tmp_path / "cut", "--tp", 2),
        ("verify", tmp_path / "cut"),
        ("merge", tmp_path / "cut", tmp_path / "merged"),
    ):
        ran = tpspec(*command, "--quiet")
        assert (ran.status, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize("ranks", ["", "x", "3-1", "0,,1", "-1", "0-", "1.5", "²"])
def test_a_mistyped_list_of_ranks_is_bad_usage(tpspec: Tpspec, tmp_path: Path, ranks: str) -> None:
    ran = tpspec("convert", STORIES, tmp_path / "cut", "--tp", 2, f"--ranks={ranks}")
    assert ran.status == 2
    assert "is not a list of ranks such as 0-3 or 0,2,5-7" in ran.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("convert", STORIES / "config.json", "out", "--tp", "2"), "give the directory that it lies in"),
        (("convert", STORIES, STORIES, "--tp", "2"), "is the source itself"),
        (("verify", STORIES), "tpspec.json: does not exist"),
        (("verify", "nowhere"), "tpspec.json: does not exist"),
        (("merge", STORIES, "out"), "is not a complete pre-sharded directory"),
        (("convert", "./no/where", "out", "--tp", "2"), "no such file or directory"),
    ],
)
def test_bad_input_is_one_clear_error(tpspec: Tpspec, command: tuple[object, ...], message: str) -> None:
    ran = tpspec(*command)
    assert ran.status == 1
    assert ran.err.startswith("error: ")
    assert message in ran.err
    assert not Path("out").exists()


@pytest.mark.parametrize("command", ["convert", "verify", "merge"])
def test_help_shows_examples(tpspec: Tpspec, command: str) -> None:
    ran = tpspec(command, "--help")
    assert ran.status == 0
    assert f"Examples:\n    tpspec {command} ./Llama-3-70B" in ran.out


def hashes(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents(folder).items()}
