"""tpspec.json is trusted in nothing: every edit that could mislead is found, and named."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cut_checkpoints import example

from tpspec import __version__
from tpspec.converters.convert import convert
from tpspec.converters.readers import CheckpointReader
from tpspec.errors import TpspecError
from tpspec.file_names import rank_file
from tpspec.layout import Segment, Share, whole
from tpspec.manifest import (
    FORMAT,
    CutRecord,
    FileRecord,
    Manifest,
    SourceRecord,
    SpecRecord,
    pack_header,
    parse_manifest,
    read_manifest,
)
from tpspec.safetensors_header import MAX_HEADER, encode_header

HASH = "0" * 32


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("manifest")
    made, layout = example(4)
    convert(CheckpointReader(made.write(folder / "source")), folder / "cut", layout)
    return (folder / "cut" / "tpspec.json").read_bytes()


def refused(text: bytes, edit: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(text)
    edit(document)
    with pytest.raises(TpspecError) as error:
        parse_manifest(json.dumps(document).encode())
    return str(error.value)


def test_what_is_written_is_read(text: bytes) -> None:
    manifest = parse_manifest(text)
    assert manifest.encode() == text
    assert (manifest.format, manifest.tpspec, manifest.tp) == (FORMAT, __version__, 4)
    assert [record.name for record in manifest.ranks] == [rank_file(rank, 4) for rank in range(4)]
    assert manifest.cuts[0].shares[3] == (Segment(12, 2), Segment(None, 2))


def test_another_format_says_which_versions_differ(text: bytes) -> None:
    """A layout version that does not match is refused (ls1intum/edutelligence#762)."""
    message = refused(text, lambda m: m.update(format=2, tpspec="0.9.0", unheard_of=1))
    assert f"has format 2, written by tpspec '0.9.0'; tpspec {__version__} reads format 1 only" in message
    assert "use the tpspec that wrote it" in message


def set_cut(shares: object, number: int = 0) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["cuts"][number].__setitem__(2, shares)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(surprise=1), "surprise: Unexpected keyword argument"),
        (lambda m: m.pop("tp"), "tp: Field required"),
        (lambda m: m.update(tp="4"), "tp: Input should be a valid integer"),
        (lambda m: m.update(tp=True), "tp: Input should be a valid integer"),
        (lambda m: m["ranks"][1].update(mode=7), "ranks.1.mode: Unexpected keyword argument"),
        (lambda m: m["ranks"].pop(), "ranks: 3 rank files are listed for tp 4"),
        (lambda m: m.update(tp=10**9), "ranks: 4 rank files are listed for tp 1000000000"),
        (lambda m: m["ranks"][1].update(name="../../etc/passwd"), "ranks.1: is called '../../etc/passwd'"),
        (lambda m: m["ranks"][1].update(name=rank_file(0, 4)), "ranks.1: is called"),
        (lambda m: m["ranks"][2].update(size=-1), "has no sound size and hash: -1"),
        (lambda m: m["ranks"][2].update(xxh3_128="zz"), "has no sound size and hash"),
        (lambda m: m["extras"].update(name="/etc/hosts"), "extras: is called '/etc/hosts'"),
        (lambda m: m.update(extras=None), "is listed without tensors for it, or the other way round"),
        (lambda m: m["copied"][0].update(name="../config.json"), "is no name of a file inside the directory"),
        (lambda m: m["copied"][0].update(name="/config.json"), "is no name of a file inside the directory"),
        (lambda m: m["copied"][0].update(name="a//b"), "is no name of a file inside the directory"),
        (lambda m: m["copied"][0].update(name="a\\b"), "is no name of a file inside the directory"),
        (lambda m: m["copied"][0].update(name="a\nb"), "is no name of a file inside the directory"),
        (lambda m: m["copied"][0].update(name=""), "is no name of a file inside the directory"),
        (lambda m: m["copied"][0].update(name="tpspec.json"), "where tpspec keeps tpspec.json"),
        (lambda m: m["copied"][0].update(name=rank_file(1, 4)), "where tpspec keeps"),
        (lambda m: m["copied"].clear(), "copied: config.json is not listed, without which nothing loads"),
        (lambda m: m["sources"][0].update(name="sub/model.safetensors"), "is no name of a file inside"),
        (lambda m: m["sources"][0].update(name=m["sources"][1]["name"]), "stands 2 times"),
        (lambda m: m["sources"][0].update(digest="-"), "has no sound digest"),
        (lambda m: m["sources"][0]["cuts"].__setitem__(0, 99), "uses cut 99; there are 5 cuts"),
        (lambda m: m["sources"][0]["cuts"].__setitem__(0, -2), "uses cut -2; there are 5 cuts"),
        (
            lambda m: m["sources"][0]["places"].__setitem__(0, 99),
            "the places of the 9 tensors are not 0 to 8",
        ),
        (lambda m: m["sources"][0]["places"].pop(), "has 2 cuts, but 1 places"),
        (set_cut([[[0, 14]]]), "cuts.0: shares a dimension among 1 ranks, not 4"),
        (set_cut([[[0, 15]], [], [], []]), "cuts.0: gives rank 0 more than the 14 indices that there are"),
        (set_cut([[[-1, 14]], [], [], []]), "cuts.0: gives rank 0 more than the 14"),
        (set_cut([[[0, 14], [14, 0]], [], [], []]), "cuts.0: gives rank 0 a segment without a length"),
        (set_cut([[[7, 7], [0, 7]], [], [], []]), "cuts.0: gives rank 0 segments that are not in order"),
        (set_cut([[[0, 7]], [], [[9, 5]], None]), "cuts.0: gives the indices 7 to 9 to no rank"),
        (lambda m: m["cuts"][0].__setitem__(0, -1), "cuts.0: has dimension -1 of size 14"),
        (lambda m: m["cuts"][0].__setitem__(0, None), "cuts.0: has dimension None of size 14"),
    ],
)
def test_an_edit_is_found_and_named(
    text: bytes, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    assert message in refused(text, edit)


def test_all_that_is_wrong_is_listed_at_once(text: bytes) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["ranks"][1]["name"] = "x"
        manifest["copied"].append({**manifest["copied"][0], "name": ".."})
        manifest["cuts"][0][2] = []

    assert len(refused(text, edit).splitlines()) == 5


def test_a_key_that_stands_twice_is_refused(text: bytes) -> None:
    with pytest.raises(TpspecError, match="key 'tp' stands 2 times"):
        parse_manifest(text.replace(b'"tp":4', b'"tp":4,"tp":4'))


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"\xff", b'{"format": 1}'])
def test_what_is_no_manifest_is_refused(broken: bytes) -> None:
    with pytest.raises(TpspecError, match=r"tpspec\.json"):
        parse_manifest(broken)


def test_a_directory_without_a_manifest_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / ".tpspec").mkdir()
    with pytest.raises(TpspecError, match="is not complete") as error:
        read_manifest(tmp_path)
    assert "it goes on where it stopped" in str(error.value)


def test_a_path_without_a_manifest_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    for name, message in (
        ("absent", "absent: there is no such directory"),
        ("file", "file: is a file, not a directory"),
        ("empty", "empty is not a directory that tpspec convert wrote"),
        ("model", "model is a checkpoint that has not been converted"),
    ):
        with pytest.raises(TpspecError, match=message) as error:
            read_manifest(tmp_path / name)
        assert error.value.remedy
    assert f"tpspec convert {tmp_path / 'model'} OUT --tp N" in str(error.value)


def test_a_header_that_inflates_without_end_is_refused() -> None:
    bomb = SourceRecord("model.safetensors", 0, HASH, pack_header(bytes(MAX_HEADER + 1)), (), ())
    with pytest.raises(ValueError, match="does not end where it should"):
        bomb.raw_header()
    with pytest.raises(ValueError, match="unknown compression method"):
        SourceRecord("model.safetensors", 0, HASH, "AAAA", (), ()).raw_header()


def test_91000_tensors_are_read_in_little_time() -> None:
    """DeepSeek-V3 in numbers: 163 files, 91,000 tensors, few distinct cuts."""
    tp, per_file = 8, 560
    even: tuple[Share, ...] = tuple((Segment(rank, 1),) for rank in range(tp))
    entries = [
        (f"model.layers.{n}.mlp.experts.weight", "BF16", (8, 8), 128 * n, 128 * n + 128)
        for n in range(per_file)
    ]
    header = encode_header(entries)[8:]
    sources = tuple(
        SourceRecord(
            f"model-{n:05}.safetensors",
            8 + len(header) + 128 * per_file,
            HASH,
            pack_header(header),
            (1,) * per_file,
            tuple(range(n * per_file, (n + 1) * per_file)),
        )
        for n in range(163)
    )
    manifest = Manifest(
        FORMAT, "0", SpecRecord("deepseek", HASH), tp, {}, (), None, sources,
        (CutRecord(None, 1, whole(tp).shares), CutRecord(0, 8, even)),
        tuple(FileRecord(rank_file(rank, tp), 1, HASH) for rank in range(tp)), None,
        (FileRecord("config.json", 1, HASH),),
    )  # fmt: skip
    encoded = manifest.encode()
    start = time.perf_counter()
    assert parse_manifest(encoded) == manifest
    assert time.perf_counter() - start < 2
