"""`tpspec convert`, `verify` and `merge`, as people see them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import click
import pytest
from cut_checkpoints import contents
from fake_hub import MODEL, fake_hub
from tiny_files import open_to_others

from tpspec.cli.progress import progress
from tpspec.safetensors_header import encode_header, read_header

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
from tpspec.safetensors_header import encode_header, read_header
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


def another_checkpoint(folder: Path) -> Path:
    """stories260k with other numbers."""
    shutil.copytree(STORIES, folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    data = 8 + int.from_bytes(content[:8], "little")
    content[data:] = bytes(byte ^ 1 for byte in content[data:])
    weights.write_bytes(content)
    return folder


def test_verify_against_another_checkpoint_is_short_and_as_json_complete(
    tpspec: Tpspec, tmp_path: Path
) -> None:
    tpspec("convert", STORIES, tmp_path / "cut", "--tp", 4)
    other = another_checkpoint(tmp_path / "other")
    ran = tpspec("verify", tmp_path / "cut", "--against", other)
    assert ran.status == 1
    assert f"{tmp_path / 'cut'} is not what {other} gives" in ran.err
    assert len(ran.err.splitlines()) == 11
    (rest,) = re.findall(r"… and (\d+) more", ran.err)
    ran = tpspec("verify", tmp_path / "cut", "--against", other, "--json")
    report = json.loads(ran.out)
    assert (ran.status, report["ok"], len(report["findings"])) == (1, False, int(rest) + 8)


def test_a_snapshot_of_links_goes_round_and_becomes_real_files(tpspec: Tpspec, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(sorted(STORIES.iterdir())):
        shutil.copy(path, tmp_path / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert tpspec("convert", snapshot, tmp_path / "cut", "--tp", 2).status == 0
    assert not any(path.is_symlink() for path in (tmp_path / "cut").rglob("*"))
    assert tpspec("merge", tmp_path / "cut", tmp_path / "merged").status == 0
    assert hashes(tmp_path / "merged") == hashes(STORIES)


def goes_round(tpspec: Tpspec, source: Path, folder: Path) -> bool:
    """Whether tp 4, cut again for tp 2, merges to the source's bytes."""
    for command in (
        ("convert", source, folder / "four", "--tp", 4),
        ("verify", folder / "four", "--against", source),
        ("convert", folder / "four", folder / "two", "--tp", 2),
        ("merge", folder / "two", folder / "merged"),
    ):
        ran = tpspec(*command)
        assert ran.status == 0, ran.err
    return hashes(folder / "merged") == hashes(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_source_that_may_only_be_read_is_enough(tpspec: Tpspec, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(STORIES, source)
    assert goes_round(tpspec, source, tmp_path / "before")  # all modules are imported now
    for path in (*source.iterdir(), source):
        path.chmod(0o555 if path.is_dir() else 0o444)
    open_to_others(tmp_path)
    tmp_path.chmod(0o777)
    os.seteuid(65534)
    try:
        assert goes_round(tpspec, source, tmp_path / "after")
    finally:
        os.seteuid(0)


def in_half_bytes(folder: Path, matrices: Callable[[str], bool]) -> Path:
    """stories260k with some of its matrices as F4."""
    shutil.copytree(STORIES, folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    data, entries, position = b"", [], 0
    for tensor in read_header(weights).tensors:
        half = len(tensor.shape) == 2 and matrices(tensor.name)
        size = prod(tensor.shape) // 2 if half else tensor.stop - tensor.start
        data += content[tensor.start : tensor.start + size]
        entries.append((tensor.name, "F4" if half else tensor.dtype, tensor.shape, position, position + size))
        position += size
    weights.write_bytes(encode_header(entries, {"format": "pt"}) + data)
    return folder


def test_tensors_of_half_a_byte_per_number_go_round(tpspec: Tpspec, tmp_path: Path) -> None:
    source = in_half_bytes(tmp_path / "source", lambda name: "o_proj" not in name and "down_proj" not in name)
    assert goes_round(tpspec, source, tmp_path)


def test_a_cut_through_the_middle_of_bytes_is_refused(tpspec: Tpspec, tmp_path: Path) -> None:
    source = in_half_bytes(tmp_path / "source", lambda name: "o_proj" in name)
    ran = tpspec("convert", source, tmp_path / "cut", "--tp", 2)
    judged = tpspec("validate", source, "--tp", 2)
    assert (ran.status, judged.status) == (1, 1)
    problem = "row q, bits of an element = 4: 4 % 8 = 4, a cut through bytes"
    assert f"model.layers.0-4.self_attn.o_proj.weight: {problem}" in ran.err
    assert "4 % 8 = 4, a cut through bytes" in judged.out
    assert "valid tp: 1 " in judged.out
    assert not (tmp_path / "cut").exists()


def test_errors_leave_no_half_of_a_json_document(tpspec: Tpspec, tmp_path: Path) -> None:
    for command in (
        ("convert", STORIES, tmp_path / "cut", "--tp", 8),
        ("verify", tmp_path / "cut"),
        ("merge", tmp_path / "cut", tmp_path / "merged"),
    ):
        ran = tpspec(*command, "--json")
        assert ran.status == 1
        assert ran.err.startswith("error: ")
        assert not ran.out or json.loads(ran.out)
