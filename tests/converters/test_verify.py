"""Verifying: everything that is wrong is found at once, and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cut_checkpoints import example, flip

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.readers import CheckpointReader, PreshardedReader
from tpspec.converters.verify import verify
from tpspec.file_names import MANIFEST, rank_file
from tpspec.manifest import read_manifest
from tpspec.presharded import Presharded, hash_file

RANK = [rank_file(rank, 4) for rank in range(4)]


@pytest.fixture
def source(tmp_path: Path) -> CheckpointReader:
    return CheckpointReader(example(4)[0].write(tmp_path / "source"))


@pytest.fixture
def cut(tmp_path: Path, source: CheckpointReader) -> Path:
    convert(source, tmp_path / "cut", example(4)[1])
    return tmp_path / "cut"


def found(directory: Path, against: CheckpointReader | None = None) -> str:
    return "\n".join(map(str, verify(directory, against).findings))


def rehash(directory: Path) -> None:
    """Makes the manifest say what the files are now: hashes alone find nothing any more."""
    document = json.loads((directory / MANIFEST).read_text())
    for record in document["ranks"]:
        record["xxh3_128"] = hash_file(directory / record["name"])
    (directory / MANIFEST).write_text(json.dumps(document))


def test_what_convert_wrote_is_sound(cut: Path, source: CheckpointReader) -> None:
    checked = verify(cut, source)
    assert checked.findings == ()
    assert (checked.files, checked.tensors) == (8, 9)
    assert verify(cut).findings == ()


def test_an_edited_byte_is_found_by_the_hash_and_the_digest(cut: Path) -> None:
    flip(cut, 2, "column")
    text = found(cut)
    assert f"{RANK[2]}: has the hash" in text
    assert "model-00001-of-00003.safetensors: its tensors put together from the ranks have the digest" in text


def test_against_the_source_the_rank_the_tensor_and_the_byte_are_named(
    cut: Path, source: CheckpointReader
) -> None:
    flip(cut, 2, "column", 5)
    flip(cut, 3, "row", 7)
    rehash(cut)
    text = found(cut, source)
    where = source.checkpoint.directory
    assert f"column: is not what {where} gives from byte 5 of its piece on ({RANK[2]})" in text
    assert f"row: is not what {where} gives from byte 7 of its piece on ({RANK[3]})" in text
    assert len(text.splitlines()) == 2


def test_copies_that_disagree_and_padding_that_is_not_zero_are_found_without_the_source(cut: Path) -> None:
    flip(cut, 1, "norm", 3)
    flip(cut, 3, "embed", 8 * 2 * 3)
    flip(cut, 2, "bias")
    rehash(cut)
    text = found(cut)
    assert f"norm: is not the other ranks' copies or zeros from byte 3 of its piece on ({RANK[1]})" in text
    assert f"embed: is not the other ranks' copies or zeros from byte 48 of its piece on ({RANK[3]})" in text
    assert f"bias: is not the other ranks' copies or zeros from byte 0 of its piece on ({RANK[2]})" in text
    assert len(text.splitlines()) == 3


def test_everything_that_is_wrong_is_found_at_once(cut: Path) -> None:
    os.truncate(cut / RANK[0], 100)
    (cut / RANK[1]).unlink()
    flip(cut, 2, "column")
    (cut / "tokenizer.json").write_text("[]")
    (cut / "extras.safetensors").rename(cut / "elsewhere")
    (cut / "extras.safetensors").symlink_to("/etc/hostname")
    text = found(cut)
    assert f"{RANK[0]}: has 100 bytes, the manifest says" in text
    assert f"{RANK[1]}: does not exist" in text
    assert f"{RANK[2]}: has the hash" in text
    assert "tokenizer.json: has the hash" in text
    assert "extras.safetensors: is a link out of the directory, to /etc/hostname" in text
    assert len(text.splitlines()) == 5


def test_a_rank_file_of_another_rank_is_found_by_its_shapes(tmp_path: Path, source: CheckpointReader) -> None:
    """Rank shapes are asserted; a file is never cut again (sgl-project/sglang#3320)."""
    convert(source, tmp_path / "two", example(2)[1])
    convert(source, tmp_path / "four", example(4)[1])
    (tmp_path / "four" / RANK[1]).write_bytes((tmp_path / "two" / rank_file(1, 2)).read_bytes())
    document = json.loads((tmp_path / "four" / MANIFEST).read_text())
    document["ranks"][1]["size"] = (tmp_path / "four" / RANK[1]).stat().st_size
    (tmp_path / "four" / MANIFEST).write_text(json.dumps(document))
    assert f"column: is BF16 [8, 8], its cut gives BF16 [4, 8] ({RANK[1]})" in found(tmp_path / "four")


def test_another_source_is_told_from_the_one_that_was_cut(tmp_path: Path, cut: Path) -> None:
    other = CheckpointReader(example(4, width=16)[0].write(tmp_path / "other"))
    assert "but BF16 [16, 8] was cut" in found(cut, other)
    path = tmp_path / "source" / "model-00002-of-00003.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    text = found(cut, CheckpointReader(open_checkpoint(tmp_path / "source")))
    assert "model-00002-of-00003.safetensors: its tensors in" in text


def test_a_resharded_directory_is_verified_against_the_one_it_came_from(tmp_path: Path, cut: Path) -> None:
    convert(PreshardedReader(Presharded.open(cut)), tmp_path / "two", example(2)[1])
    assert verify(tmp_path / "two", PreshardedReader(Presharded.open(cut))).findings == ()


def test_the_command_line_exits_with_1_and_lists_what_is_wrong(cut: Path) -> None:
    command = [sys.executable, "-m", "tpspec", "verify", str(cut)]
    sound = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sound.stdout == f"{cut} is sound: 8 files, 9 tensors, {kib(cut)} KiB\n"
    flip(cut, 2, "column")
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith(f"error: {cut} is not what convert wrote\n  {RANK[2]}: has the hash")
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert as_json.returncode == 1
    report = json.loads(as_json.stdout)
    assert report["ok"] is False
    assert report["findings"][0]["subject"] == RANK[2]


def kib(directory: Path) -> str:
    manifest = read_manifest(directory)
    return f"{sum(r.size for r in (*manifest.own_files(), *manifest.copied)) / 1024:.3g}"


def test_a_rank_that_shrinks_meanwhile_differs(cut: Path, source: CheckpointReader) -> None:
    def shrink(_done: int, _total: int) -> None:
        os.truncate(cut / RANK[3], 600)

    text = "\n".join(map(str, verify(cut, source, progress=shrink, strip_bytes=16).findings))
    assert f"{RANK[3]}: has the hash" in text
    assert f"column: is not what {source.checkpoint.directory} gives" in text
