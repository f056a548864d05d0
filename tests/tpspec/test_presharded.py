"""A pre-sharded directory is opened only if it is what it says, and a rank loaded only if it is right."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cut_checkpoints import example, flip

from tpspec.converters.convert import convert
from tpspec.converters.readers import CheckpointReader
from tpspec.errors import TpspecError
from tpspec.file_names import MANIFEST, rank_file
from tpspec.manifest import pack_header
from tpspec.presharded import Presharded
from tpspec.safetensors_header import encode_header

RANK = [rank_file(rank, 4) for rank in range(4)]


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    made, layout = example(4)
    convert(CheckpointReader(made.write(tmp_path / "source")), tmp_path / "cut", layout)
    return tmp_path / "cut"


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((directory / MANIFEST).read_text())
    change(document)
    (directory / MANIFEST).write_text(json.dumps(document))


def refused(directory: Path, rank: int, tp: int = 4) -> str:
    with pytest.raises(TpspecError) as error:
        Presharded.open(directory).check_rank(rank, tp)
    return str(error.value)


def test_it_gives_back_the_layout_and_the_headers_that_it_was_made_from(cut: Path) -> None:
    presharded = Presharded.open(cut)
    _, layout = example(4)
    assert presharded.layout == layout
    assert list(presharded.layout.tensors) == list(layout.tensors)
    assert presharded.config == {"model_type": "llama"}
    assert [file.header for file in presharded.files] == [
        (cut.parent / "source" / file.name).read_bytes()[8 : 8 + len(file.header)]
        for file in presharded.files
    ]


def test_every_rank_has_the_shapes_that_its_cuts_give(cut: Path) -> None:
    for rank in range(4):
        header = Presharded.open(cut).check_rank(rank, 4)
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        assert (shapes["embed"], shapes["column"], shapes["row"]) == ((4, 8), (4, 8), (8, 4))
        assert (shapes["norm"], shapes["scale"], shapes["empty"]) == ((8,), (), (0, 3))


def test_another_tp_is_refused_with_what_to_do(cut: Path) -> None:
    text = refused(cut, 0, 2)
    assert "was cut for tp 4, not for tp 2" in text
    assert f"tpspec convert {cut} OUT --tp 2" in text


def test_a_missing_rank_is_named(cut: Path) -> None:
    (cut / RANK[1]).unlink()
    assert f"rank 1 cannot be loaded\n  {RANK[1]}: does not exist" in refused(cut, 1)
    assert Presharded.open(cut).check_rank(0, 4).name == RANK[0]


def test_a_truncated_rank_is_named_with_both_sizes(cut: Path) -> None:
    size = (cut / RANK[2]).stat().st_size
    os.truncate(cut / RANK[2], size - 1)
    assert f"{RANK[2]}: has {size - 1} bytes, the manifest says {size}" in refused(cut, 2)


def test_an_edited_rank_is_found_by_its_hash_unless_hashes_are_skipped(cut: Path) -> None:
    """One corrupt rank says which it is (sgl-project/sglang#5457)."""
    flip(cut, 3, "row")
    text = refused(cut, 3)
    assert text.startswith(f"rank 3 cannot be loaded\n  {RANK[3]}: has the hash")
    assert Presharded.open(cut).check_rank(3, 4, hashes=False).name == RANK[3]


def test_configs_and_tokenizer_files_that_were_edited_are_all_named(tmp_path: Path) -> None:
    source, (made, layout) = tmp_path / "source", example(4)
    reader = CheckpointReader(made.write(source))
    for name in ("generation_config.json", "tokenizer.model", "README.md"):
        (source / name).write_text("as it was")
    convert(reader, tmp_path / "cut", layout)
    Presharded.open(tmp_path / "cut").check_copied()
    (tmp_path / "cut" / "config.json").write_text('{"model_type": "llama", "rope_theta": 500}')
    (tmp_path / "cut" / "generation_config.json").write_text("as it is!")
    (tmp_path / "cut" / "tokenizer.model").unlink()
    (tmp_path / "cut" / "README.md").write_text("what people read")
    with pytest.raises(TpspecError) as error:
        Presharded.open(tmp_path / "cut").check_copied()
    problems = {finding.subject: finding.problem for finding in error.value.findings}
    assert problems.keys() == {"config.json", "generation_config.json", "tokenizer.model"}
    assert "the manifest says 24" in problems["config.json"]
    assert "has the hash" in problems["generation_config.json"]
    assert "does not exist" in problems["tokenizer.model"]


def test_a_rank_file_in_the_place_of_another_is_found(cut: Path) -> None:
    (cut / RANK[1]).write_bytes((cut / RANK[2]).read_bytes())
    assert "has the hash" in refused(cut, 1)


def test_a_link_out_of_the_directory_is_refused_and_one_inside_is_not(cut: Path) -> None:
    (cut / "blobs").mkdir()
    (cut / RANK[0]).rename(cut / "blobs" / "zero")
    (cut / RANK[0]).symlink_to("blobs/zero")
    assert Presharded.open(cut).check_rank(0, 4).name == RANK[0]
    (cut / RANK[1]).rename(cut.parent / "one")
    (cut / RANK[1]).symlink_to(cut.parent / "one")
    assert f"{RANK[1]}: is a link out of the directory, to {cut.parent / 'one'}" in refused(cut, 1)


def test_a_file_that_is_no_file_is_refused(cut: Path) -> None:
    (cut / RANK[0]).unlink()
    (cut / RANK[0]).mkdir()
    assert f"{RANK[0]}: is a directory, not a file" in refused(cut, 0)


def rewrite(directory: Path, rank: int, entries: list[tuple[str, str, tuple[int, ...], int, int]]) -> None:
    """Gives a rank file other entries over as many bytes, and the manifest its new size."""
    content = encode_header(entries) + bytes(entries[-1][-1])
    (directory / RANK[rank]).write_bytes(content)
    edit(directory, lambda m: m["ranks"][rank].update(size=len(content)))


def test_tensors_missing_foreign_or_of_another_shape_are_all_named(cut: Path) -> None:
    header = Presharded.open(cut).rank_header(0)
    data = 8 + len(header.header)
    entries = [(t.name, t.dtype, t.shape, t.start - data, t.stop - data) for t in header.tensors]
    first, second, *rest = entries
    rewrite(cut, 0, [first, ("stranger", *second[1:]), *rest])
    text = refused(cut, 0)
    assert f"{second[0]}: is missing ({RANK[0]})" in text
    assert f"stranger: does not belong to this rank ({RANK[0]})" in text
    rewrite(cut, 0, [(first[0], first[1], first[2][::-1], *first[3:]), second, *rest])
    assert f"{first[0]}: is BF16 [8, 4], its cut gives BF16 [4, 8] ({RANK[0]})" in refused(cut, 0)
    swapped = [(second[0], *first[1:]), (first[0], *second[1:]), *rest]
    rewrite(cut, 0, swapped)
    assert "holds its tensors in another order" in refused(cut, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["sources"][0].update(header="AAAA"), "has a damaged header"),
        (lambda m: m["sources"][0].update(size=5), "is cut off"),
        (lambda m: m["sources"][0].update(cuts=[0], places=[0]), "places of the 8 tensors"),
        (lambda m: m["cuts"][0].__setitem__(0, 1), "but a cut of dimension 1 with size 14"),
        (lambda m: m["cuts"][0].__setitem__(0, 5), "but a cut of dimension 5 with size 14"),
        (lambda m: m["sources"][0]["cuts"].reverse(), "but a cut of dimension 0 with size"),
        (
            lambda m: m["sources"][0].update(header=m["sources"][1]["header"]),
            "model-00001-of-00003.safetensors",
        ),
    ],
)
def test_cuts_that_do_not_fit_the_original_headers_are_refused(
    cut: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(cut, change)
    with pytest.raises(TpspecError) as error:
        Presharded.open(cut)
    assert message in str(error.value)


def test_half_bytes_cannot_be_cut(cut: Path) -> None:
    header = encode_header([("embed", "F4", (16,), 0, 8), ("column", "BF16", (16, 8), 8, 264)])
    edit(cut, lambda m: m["sources"][0].update(header=pack_header(header[8:]), size=len(header) + 264))
    edit(cut, lambda m: m["cuts"].__setitem__(0, [0, 16, [[[0, 16]], None, None, None]]))
    with pytest.raises(TpspecError, match=r"embed: cannot be cut along dimension 0: F4 \[\] does not fill"):
        Presharded.open(cut)
