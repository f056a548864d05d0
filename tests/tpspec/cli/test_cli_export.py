"""`tpspec export` and `verify --engine`, as people see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_checkpoints import RECORDS, write

STORIES = Path(__file__).parents[2] / "models" / "stories260k"
Tpspec = Callable[..., Any]


@pytest.mark.parametrize(
    ("engine", "serve"),
    [
        ("vllm", "vllm serve {out} --load-format sharded_state --tensor-parallel-size 4"),
        ("sglang", "python -m sglang.launch_server --model-path {out} --load-format sharded_state --tp 4"),
    ],
)
def test_an_export_says_how_to_serve_it_and_verifies(
    tpspec: Tpspec, tmp_path: Path, engine: str, serve: str
) -> None:
    out = tmp_path / "out"
    ran = tpspec("export", STORIES, out, "--engine", engine, "--tp", 4)
    assert ran.status == 0
    assert re.match(r"wrote 4 files, .* in .* s \(.*/s\)\n", ran.out)
    assert ran.out.endswith(f"{out} is complete; to serve it: {serve.format(out=out)}\n")
    ran = tpspec("verify", out, "--engine", engine, "--against", STORIES)
    assert ran.out.startswith(f"{out} is sound: 4 files, ")
    assert ran.out.endswith(f"the same as {STORIES}\n")
    assert tpspec("verify", out, "--engine", engine).status == 0


def test_a_second_export_into_the_same_directory_is_refused(tpspec: Tpspec, tmp_path: Path) -> None:
    arguments = ("export", STORIES, tmp_path / "out", "--engine", "vllm", "--tp", 2)
    assert tpspec(*arguments, "--quiet").out == ""
    ran = tpspec(*arguments)
    assert ran.status == 1
    assert "is complete already" in ran.err


def test_json_names_the_files_and_the_command(tpspec: Tpspec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = tpspec("export", STORIES, out, "--engine", "vllm", "--tp", 2, "--max-file-size", "256KiB", "--json")
    report = json.loads(ran.out)
    assert report["engine"] == "vllm"
    assert report["written"][0] == "model-rank-0-part-0.safetensors"
    assert len(report["written"]) > 2
    assert report["serve"].startswith("vllm serve ")


def test_a_release_may_be_spelled_as_its_tag_or_shorter(tpspec: Tpspec, tmp_path: Path) -> None:
    for_vllm = ("--engine", "vllm", "--tp", 2, "--engine-version")
    for number, spelled in enumerate(("v0.23.0", "0.23", "0.23.0")):
        out = tmp_path / str(number)
        assert tpspec("export", STORIES, out, *for_vllm, spelled).status == 0
        assert json.loads((out / "tpspec-export.json").read_text())["names_of"] == "0.23.0"
    ran = tpspec("export", STORIES, tmp_path / "out", *for_vllm, "new")
    assert (ran.status, "'new' is not a release such as 0.24.0" in ran.err) == (2, True)


def test_a_folder_s_name_is_no_option_of_the_command(
    tpspec: Tpspec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tpspec("export", STORIES, "./-dash", "--engine", "vllm", "--tp", 2)
    assert "vllm serve ./-dash " in ran.out


@pytest.mark.parametrize("size", ["5 apples", "0", "0.4", "-1GB", "GB"])
def test_what_is_no_size_is_bad_usage(tpspec: Tpspec, tmp_path: Path, size: str) -> None:
    ran = tpspec("export", STORIES, tmp_path / "out", "--engine", "vllm", "--tp", 2, "--max-file-size", size)
    assert ran.status == 2


def test_another_engines_directory_is_one_error_without_a_traceback(tpspec: Tpspec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tpspec("export", STORIES, out, "--engine", "sglang", "--tp", 2)
    ran = tpspec("verify", out, "--engine", "vllm")
    assert ran.status == 1
    assert f"error: {out} was exported for sglang, not for vllm\n  → give --engine sglang\n" in ran.err
    (out / "tpspec-export.json").unlink()
    ran = tpspec("verify", out, "--engine", "vllm", "--against", STORIES)
    assert ran.status == 1
    assert f"{out} is not what {STORIES} gives" in ran.err
    assert "model.layers.0.self_attn.attn._k_scale: is missing (rank 0)" in ran.err
    assert "Traceback" not in ran.err


def test_a_tp_that_does_not_fit_is_refused_before_anything_is_written(tpspec: Tpspec, tmp_path: Path) -> None:
    ran = tpspec("export", STORIES, tmp_path / "out", "--engine", "vllm", "--tp", 3)
    assert ran.status == 1
    assert "valid tp: 1, 2, 4   (tpspec pad leaves a vocabulary as it is)" in ran.err
    assert not (tmp_path / "out").exists()


def test_pad_says_which_engines_do_not_divide_the_vocabulary(tpspec: Tpspec, tmp_path: Path) -> None:
    said = "SGLang does not load it at tp=3: the vocabulary's 512 rows: 512 % 3 = 2"
    assert said in tpspec("pad", STORIES, tmp_path / "three", "--tp", 3).out
    assert "does not load" not in tpspec("pad", STORIES, tmp_path / "sixteen", "--tp", 16).out


def test_what_was_cut_with_padding_is_padded_as_a_checkpoint_and_exported(
    tpspec: Tpspec, tmp_path: Path
) -> None:
    cut, padded, out = (tmp_path / name for name in ("cut", "padded", "out"))
    assert tpspec("convert", STORIES, cut, "--tp", 16, "--pad").status == 0
    ran = tpspec("export", cut, out, "--engine", "vllm", "--tp", 16)
    assert "pad it first: tpspec pad SRC PADDED --tp 16, then export PADDED" in ran.err
    assert tpspec("pad", cut, padded, "--tp", 16).status == 0
    assert tpspec("export", padded, out, "--engine", "vllm", "--tp", 16).status == 0


def test_a_later_release_than_was_compared_is_noted(tpspec: Tpspec, tmp_path: Path) -> None:
    arguments = ("export", STORIES, tmp_path / "out", "--engine", "vllm", "--tp", 2, "--engine-version")
    ran = tpspec(*arguments, "99.0.0")
    assert ran.status == 0
    assert ran.err.startswith("note: nothing was compared with 99.0.0; the names are those of vLLM 0.")


def test_paths_with_spaces_are_quoted_in_the_command_that_serves(tpspec: Tpspec, tmp_path: Path) -> None:
    out = tmp_path / "my model"
    ran = tpspec("export", STORIES, out, "--engine", "vllm", "--tp", 2, "--max-file-size", "0.5MB")
    assert f"to serve it: vllm serve '{out}' --load-format" in ran.out


@pytest.mark.parametrize("command", ["verify", "merge"])
def test_commands_for_what_convert_wrote_know_an_export(tpspec: Tpspec, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    tpspec("export", STORIES, out, "--engine", "vllm", "--tp", 2)
    ran = tpspec(command, out, *([tmp_path / "merged"] if command == "merge" else []))
    assert ran.status == 1
    assert f"{out} is an export for an engine" in ran.err
    assert f"tpspec verify {out} --engine ENGINE" in ran.err


def test_pad_is_no_remedy_and_says_so_where_an_engine_wants_fewer_ranks(
    tpspec: Tpspec, tmp_path: Path
) -> None:
    source = write(json.loads(RECORDS.read_text())["models"]["qwen3_moe"], tmp_path / "source")
    wanted = "`tp <= num_experts` does not hold, where num_experts = 8, tp = 16"
    ran = tpspec("export", source, tmp_path / "out", "--engine", "vllm", "--tp", 16)
    assert (ran.status, "tpspec pad" in ran.err) == (1, False)
    assert (
        f"vLLM does not load it at tp=16: {wanted}"
        in tpspec("pad", source, tmp_path / "padded", "--tp", 16).out
    )
    ran = tpspec("export", tmp_path / "padded", tmp_path / "out", "--engine", "vllm", "--tp", 16)
    assert f"vLLM refuses this model at tp=16: {wanted}" in ran.err
