"""Merging: the original files, or nothing that looks like them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cut_checkpoints import contents, example, flip

from tpspec.checkpoint import Checkpoint, open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.merge import MERGE_STATE, merge
from tpspec.converters.readers import CheckpointReader, PreshardedReader
from tpspec.errors import TpspecError
from tpspec.file_names import rank_file
from tpspec.manifest import read_manifest
from tpspec.presharded import Presharded


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    return example(4)[0].write(tmp_path / "source")


@pytest.fixture
def cut(tmp_path: Path, source: Checkpoint) -> Path:
    convert(CheckpointReader(source), tmp_path / "cut", example(4)[1])
    return tmp_path / "cut"


def reader(directory: Path) -> PreshardedReader:
    return PreshardedReader(Presharded.open(directory))


def test_every_file_has_its_original_bytes(tmp_path: Path, source: Checkpoint, cut: Path) -> None:
    merged = merge(reader(cut), tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(source.directory)
    assert set(merged.files) == set(contents(source.directory))
    assert merged.losses == ()


def test_padding_does_not_come_back(tmp_path: Path, cut: Path) -> None:
    """hpcaitech/ColossalAI#6167: the padded rows of a vocabulary stay out of the saved model."""
    assert read_manifest(cut).padding == {"embed": (14, 16)}
    merge(reader(cut), tmp_path / "merged")
    assert open_checkpoint(tmp_path / "merged").tensors["embed"].shape == (14, 8)


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path, cut: Path) -> None:
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "notes.txt").write_text("mine")
    with pytest.raises(TpspecError, match=r"is not empty: it holds notes\.txt"):
        merge(reader(cut), tmp_path / "merged")
    assert contents(tmp_path / "merged") == {"notes.txt": b"mine"}


def test_an_edited_rank_is_found_and_nothing_is_left(tmp_path: Path, cut: Path) -> None:
    flip(cut, 1, "column")
    with pytest.raises(TpspecError, match="is damaged") as error:
        merge(reader(cut), tmp_path / "merged")
    assert "model-00001-of-00003.safetensors: its tensors have the digest" in str(error.value)
    assert f"tpspec verify {cut}" in str(error.value)
    assert not (tmp_path / "merged").exists()


def test_an_edited_config_is_found_and_nothing_is_left(tmp_path: Path, cut: Path) -> None:
    (cut / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(TpspecError, match="was edited") as error:
        merge(reader(cut), tmp_path / "merged")
    assert "config.json: has 23 bytes" in str(error.value)
    assert not (tmp_path / "merged").exists()


def test_an_interrupted_merge_is_simply_run_again(tmp_path: Path, source: Checkpoint, cut: Path) -> None:
    def interrupt(done: int, _total: int) -> None:
        if done > 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(reader(cut), tmp_path / "merged", progress=interrupt, strip_bytes=64)
    assert not (tmp_path / "merged").exists()
    (tmp_path / "merged").mkdir()
    with pytest.raises(KeyboardInterrupt):
        merge(reader(cut), tmp_path / "merged", progress=interrupt, strip_bytes=64)
    assert list((tmp_path / "merged").iterdir()) == []
    merge(reader(cut), tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(source.directory)


def test_what_a_killed_merge_left_is_replaced(tmp_path: Path, source: Checkpoint, cut: Path) -> None:
    out = tmp_path / "merged"
    (out / MERGE_STATE).mkdir(parents=True)
    (out / MERGE_STATE / "model-00001-of-00003.safetensors").write_bytes(b"half of it")
    (out / "model-00002-of-00003.safetensors").write_bytes(b"already renamed")
    merge(reader(cut), out)
    assert contents(out) == contents(source.directory)


def test_two_merges_into_one_directory_at_once_the_second_is_refused(
    tmp_path: Path, source: Checkpoint, cut: Path
) -> None:
    refused = []

    def second(_done: int, _total: int) -> None:
        if not refused:
            with pytest.raises(TpspecError, match="another tpspec merge is writing") as error:
                merge(reader(cut), tmp_path / "merged")
            refused.append(error)

    merge(reader(cut), tmp_path / "merged", progress=second)
    assert contents(tmp_path / "merged") == contents(source.directory)


def test_a_rank_that_is_missing_is_named_before_anything_is_written(cut: Path) -> None:
    (cut / rank_file(2, 4)).unlink()
    with pytest.raises(TpspecError, match=r"rank 2 cannot be loaded\n.*model-rank-00002-of-00004"):
        reader(cut)


def test_a_rank_truncated_meanwhile_is_an_error_not_a_crash(tmp_path: Path, cut: Path) -> None:
    whole = reader(cut)
    os.truncate(cut / rank_file(3, 4), 600)
    with pytest.raises(TpspecError, match="changed while it was being read"):
        merge(whole, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_merge_killed_from_outside_leaves_no_config_and_a_rerun_completes(tmp_path: Path) -> None:
    made, layout = example(4, width=1 << 18)
    convert(CheckpointReader(made.write(tmp_path / "big")), tmp_path / "cut", layout)
    command = [sys.executable, "-m", "tpspec", "merge", str(tmp_path / "cut"), str(tmp_path / "merged")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not list((tmp_path / "merged").rglob("*.safetensors")):
            time.sleep(0.001)
        process.kill()
    assert process.returncode == 0 or not (tmp_path / "merged" / "config.json").exists()
    if process.returncode:
        subprocess.run(command, check=True, capture_output=True)
    assert contents(tmp_path / "merged") == contents(tmp_path / "big")


def test_a_mount_point_that_fills_up_is_called_full_and_stays(tmp_path: Path, small_disk: Path) -> None:
    made, layout = example(4, width=1024)
    convert(CheckpointReader(made.write(tmp_path / "source")), tmp_path / "cut", layout)

    def fill(_done: int, _total: int) -> None:
        if not filler.exists():
            with suppress(OSError):  # the merge writes on meanwhile
                filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))

    filler = small_disk / MERGE_STATE / "filler"
    with pytest.raises(TpspecError, match=r"cannot write .*: No space left on device"):
        merge(reader(tmp_path / "cut"), small_disk, progress=fill, strip_bytes=64)
    assert list(small_disk.iterdir()) == []


def test_a_failed_merge_into_the_current_directory_says_why_and_leaves_it(tmp_path: Path, cut: Path) -> None:
    flip(cut, 1, "column")
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "tpspec", "merge", str(cut), "."]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{cut} is damaged" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []
