"""`tpspec convert`, `verify` and `merge`, as people see them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from cut_checkpoints import contents
from fake_hub import MODEL, fake_hub

from tpspec.cli.progress import progress

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
        (("verify", STORIES), "is a checkpoint that has not been converted"),
        (("verify", STORIES / "config.json"), "is a file, not a directory"),
        (("verify", "nowhere"), "nowhere: there is no such directory"),
        (("merge", STORIES, "out"), "is a checkpoint that has not been converted"),
        (("merge", STORIES / "config.json", "out"), "is a file, not a directory"),
        (("merge", "nowhere", "out"), "nowhere: there is no such directory"),
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


def test_a_model_of_the_hub_is_downloaded_only_if_its_headers_fit(tpspec: Tpspec, tmp_path: Path) -> None:
    with fake_hub(STORIES) as hub:
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "tpspec", "convert", MODEL, str(tmp_path / "cut"), "--tp"]
        bad = subprocess.run([*command, "8"], env=environment, capture_output=True, text=True, check=False)
        assert (bad.returncode, bad.stderr.count("172 % 8 = 4")) == (1, 3)
        assert hub.sent["model.safetensors"] < 100_000
        subprocess.run([*command, "4"], env=environment, capture_output=True, check=True)
    assert tpspec("verify", tmp_path / "cut", "--against", STORIES).status == 0


def test_an_unfinished_directory_is_no_source(tpspec: Tpspec, tmp_path: Path) -> None:
    tpspec("convert", STORIES, tmp_path / "cut", "--tp", 2, "--ranks", "1")
    for command in (
        ("convert", tmp_path / "cut", tmp_path / "out", "--tp", 1),
        ("verify", tmp_path / "cut"),
        ("merge", tmp_path / "cut", tmp_path / "out"),
    ):
        ran = tpspec(*command)
        assert ran.status == 1
        assert "not a complete" in ran.err or "is not complete" in ran.err
    assert not (tmp_path / "out").exists()


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("click.echo", lambda text, err: lines.append(text) if err else None)
    monkeypatch.setattr("tpspec.cli.progress.LOG_EVERY", 0.0)
    with progress(quiet=False) as advance:
        assert advance is not None
        advance(1 << 20, 4 << 20)
        advance(2 << 20, 4 << 20)
    assert re.fullmatch(r"2 MiB of 4 MiB, .*/s, \d+ s left", lines[-1])


STEPS = """
import time
from tpspec.cli.progress import progress
with progress(quiet=False) as advance:
    for step in range(1, 21):
        advance(step * 5_000_000, 100_000_000)
        time.sleep(0.03)
"""


def test_progress_on_a_terminal_shows_rate_and_time_left() -> None:
    terminal, end = pty.openpty()
    environment = os.environ | {"COLUMNS": "100", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", STEPS], stderr=end, env=environment):
        os.close(end)
        shown = ""
        with contextlib.suppress(OSError):  # what a terminal reads when the other end is closed
            while part := os.read(terminal, 1 << 16):
                shown += part.decode()
    os.close(terminal)
    assert re.search(r"[\d.]+/100\.0 MB [\d.]+ MB/s 0:00:0\d", click.unstyle(shown))
