"""The laws of cutting, for any cut of any tensor: what ranks hold, and that merging gives the source back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import xxhash
from cut_checkpoints import AUX, Made, checkpoints, contents, layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.readers import CheckpointReader, PreshardedReader
from tpspec.converters.verify import verify
from tpspec.file_names import MANIFEST
from tpspec.layout import Layout
from tpspec.presharded import Presharded
from tpspec.safetensors_header import StoredFile

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where syncing costs nothing."""
slow = settings(max_examples=60)


@slow
@given(st.data())
def test_ranks_hold_what_numpy_slices_and_merging_gives_the_original_bytes(data: st.DataObject) -> None:
    made = data.draw(checkpoints())
    layout = data.draw(layouts(made))
    strip_bytes = data.draw(st.sampled_from([1, 2, 3, 7, 16, 50, 1 << 20]))
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        source = CheckpointReader(made.write(folder / "source"))
        outcome = convert(source, folder / "out", layout, strip_bytes=strip_bytes)
        assert not outcome.missing
        check_ranks(made, layout, folder / "out")
        assert not verify(folder / "out", strip_bytes=strip_bytes).findings
        assert not verify(folder / "out", source, strip_bytes=strip_bytes).findings
        merge(PreshardedReader(Presharded.open(folder / "out")), folder / "merged", strip_bytes=strip_bytes)
        assert contents(folder / "merged") == contents(folder / "source")


@slow
@given(st.data())
def test_resharding_gives_what_cutting_the_original_gives(data: st.DataObject) -> None:
    made = data.draw(checkpoints())
    first, second = data.draw(layouts(made)), data.draw(layouts(made))
    strip_bytes = data.draw(st.sampled_from([1, 5, 16, 1 << 20]))
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        source = CheckpointReader(made.write(folder / "source"))
        convert(source, folder / "first", first, strip_bytes=strip_bytes)
        convert(source, folder / "direct", second, strip_bytes=strip_bytes)
        cut_once = PreshardedReader(Presharded.open(folder / "first"))
        convert(cut_once, folder / "again", second, strip_bytes=strip_bytes)
        assert contents(folder / "again") == contents(folder / "direct")
        merge(PreshardedReader(Presharded.open(folder / "again")), folder / "merged", strip_bytes=strip_bytes)
        assert contents(folder / "merged") == contents(folder / "source")


def check_ranks(made: Made, layout: Layout, out: Path) -> None:
    presharded = Presharded.open(out)
    for rank in range(layout.tp):
        file = presharded.check_rank(rank, layout.tp)
        held = {tensor.name: tensor for tensor in layout.of_rank(rank)}
        assert [tensor.name for tensor in file.tensors] == list(held)
        content = (out / file.name).read_bytes()
        for stored in file.tensors:
            tensor = held[stored.name]
            assert (stored.dtype, stored.shape) == (tensor.dtype, tensor.local_shape(rank))
            assert content[stored.start : stored.stop] == made.piece(stored.name, tensor.cut, rank)
        assert xxhash.xxh3_128(content).hexdigest() == presharded.manifest.ranks[rank].xxh3_128
    check_extras(made, presharded.extras_header(), out)
    assert {path.name for path in out.iterdir()} == {
        MANIFEST,
        *(record.name for record in presharded.manifest.own_files()),
        *(name.split("/")[0] for name in AUX),
    }


def check_extras(made: Made, file: StoredFile | None, out: Path) -> None:
    assert {tensor.name for tensor in file.tensors} == set(made.extras) if file else not made.extras
    for stored in file.tensors if file else ():
        content = (out / "extras.safetensors").read_bytes()
        assert content[stored.start : stored.stop] == made.data[stored.name]
