"""`tpspec show` with --html, --svg and --png, as people call it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "models"
LLAMA_70B = MODELS / "Meta-Llama-3-70B" / "config.json"


def test_show_writes_a_page_and_figures_in_place_of_the_table(tpspec: Callable[..., Any], tmp_path: Path):
    files = [tmp_path / f"map.{suffix}" for suffix in ("html", "svg")]
    options = [word for path in files for word in (f"--{path.suffix[1:]}", path)]
    ran = tpspec("show", LLAMA_70B, "--tp", "16", *options)
    assert (ran.status, ran.out) == (0, "")
    assert ran.err.splitlines() == [f"wrote {path}" for path in files]
    assert "<h1>Meta-Llama-3-70B on 16 ranks</h1>" in files[0].read_text("utf-8")
    assert files[1].read_text("utf-8").startswith("<?xml")


def test_the_picture_in_the_documents_is_what_show_draws(tpspec: Callable[..., Any], tmp_path: Path):
    tpspec("show", LLAMA_70B, "--tp", "16", "--svg", tmp_path / "map.svg")
    kept = Path(__file__).parents[3] / "docs" / "pictures" / "llama-3-70b-tp16.svg"
    assert kept.read_text("utf-8") == (tmp_path / "map.svg").read_text("utf-8")


def test_json_is_printed_beside_a_picture(tpspec: Callable[..., Any], tmp_path: Path):
    ran = tpspec("show", LLAMA_70B, "--tp", "8", "--json", "--svg", tmp_path / "map.svg")
    assert json.loads(ran.out)["tp"] == 8
    assert (tmp_path / "map.svg").exists()


def test_a_png_without_resvg_names_the_extra(
    tpspec: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    ran = tpspec("show", LLAMA_70B, "--tp", "8", "--png", tmp_path / "map.png")
    assert ran.status == 1
    assert ran.err.splitlines() == [
        "error: a PNG is drawn by resvg-py, which is not installed",
        "  → pip install 'tpspec[pictures]', or take --svg",
    ]


def test_a_file_that_cannot_be_written_is_one_line(tpspec: Callable[..., Any], tmp_path: Path):
    target = tmp_path / "absent" / "map.html"
    ran = tpspec("show", LLAMA_70B, "--tp", "8", "--html", target)
    assert ran.status == 1
    assert ran.err == f"error: {target}: No such file or directory\n"


@pytest.mark.parametrize("command", [("show", "--tp", "2"), ("plan", "--tp", "2")])
def test_two_pictures_in_one_file_and_dashes_are_refused(tpspec: Callable[..., Any], tmp_path: Path, command):
    name, *options = command
    both = ("--html", tmp_path / "a", "--svg", f"{tmp_path}/./a")
    ran = tpspec(name, LLAMA_70B, *options, *both)
    assert (ran.status, ran.out) == (2, "")
    assert "/a is what --html is drawn to" in ran.err
    ran = tpspec(name, LLAMA_70B, *options, "--svg", "-")
    assert (ran.status, "pictures are drawn to files" in ran.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
