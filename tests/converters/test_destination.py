"""Destinations that are refused, before one byte is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cut_checkpoints import contents, example

from tpspec.converters.convert import convert
from tpspec.converters.destination import check_destination, check_room
from tpspec.converters.readers import CheckpointReader
from tpspec.errors import TpspecError


def full(folder: Path) -> Path:
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("mine")
    return folder / "out"


def file(folder: Path) -> Path:
    (folder / "out").write_text("mine")
    return folder / "out"


def below_a_file(folder: Path) -> Path:
    return file(folder) / "deeper"


def dangling(folder: Path) -> Path:
    (folder / "out").symlink_to(folder / "nowhere")
    return folder / "out"


def link_to_source(folder: Path) -> Path:
    (folder / "out").symlink_to(folder / "source")
    return folder / "out"


def inside_by_a_link(folder: Path) -> Path:
    return link_to_source(folder) / "out"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (full, "is not empty: it holds notes.txt"),
        (file, "is a file, not a directory"),
        (below_a_file, "out is not a directory"),
        (dangling, "is a link to .*nowhere, which does not exist"),
        (link_to_source, "is the source itself"),
        (inside_by_a_link, "lies inside the source"),
        (lambda folder: folder / "source", "is the source itself"),
        (lambda folder: folder / "source" / "out", "lies inside the source"),
        (lambda folder: folder, "contains the source"),
        (lambda folder: folder / "out" / ".." / "source", "is the source itself"),
    ],
)
def test_a_bad_destination_is_refused_and_nothing_is_touched(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    made, layout = example(2)
    source = CheckpointReader(made.write(tmp_path / "source"))
    out = make(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(TpspecError, match=message):
        convert(source, out, layout)
    assert contents(tmp_path) == before


def test_a_complete_directory_is_not_written_again(tmp_path: Path) -> None:
    made, layout = example(2)
    source = CheckpointReader(made.write(tmp_path / "source"))
    convert(source, tmp_path / "out", layout)
    before = contents(tmp_path)
    with pytest.raises(TpspecError, match="is complete already") as error:
        convert(source, tmp_path / "out", layout)
    assert f"tpspec verify {tmp_path / 'out'}" in str(error.value)
    assert contents(tmp_path) == before


def test_an_empty_directory_and_absent_parents_are_fine(tmp_path: Path) -> None:
    made, layout = example(2)
    source = CheckpointReader(made.write(tmp_path / "source"))
    (tmp_path / "empty").mkdir()
    assert not convert(source, tmp_path / "empty", layout).missing
    assert not convert(source, tmp_path / "not" / "yet" / "there", layout).missing


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_parent_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(TpspecError, match=r"no permission to write in .*"):
            check_destination(Path("/usr/out"), tmp_path)
    finally:
        os.seteuid(0)


def test_too_small_a_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(TpspecError, match=r"needs 1,000,000,000,000\.0 MB more, .* has [\d,.]+ MB free"):
        check_room(tmp_path / "not" / "there", 10**18)


@pytest.mark.parametrize("name", ["new\nline.txt", os.fsdecode(b"bad\xff.txt"), "tpspec.json.partial"])
def test_a_file_that_cannot_go_along_is_named_before_anything_is_written(tmp_path: Path, name: str) -> None:
    made, layout = example(2)
    source = CheckpointReader(made.write(tmp_path / "source"))
    (tmp_path / "source" / name).touch()
    with pytest.raises(TpspecError, match="holds files that cannot be copied"):
        convert(source, tmp_path / "out", layout)
    assert not (tmp_path / "out").exists()
