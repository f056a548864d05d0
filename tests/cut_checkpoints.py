"""Checkpoints of random bytes under random cuts, and what each rank should hold of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from tpspec.checkpoint import Checkpoint, open_checkpoint
from tpspec.dtypes import BITS, nbytes
from tpspec.layout import Cut, Layout, Segment, TensorLayout, merge_adjacent, once, whole
from tpspec.presharded import Presharded
from tpspec.safetensors_header import encode_header

AUX = {
    "config.json": b'{"model_type": "llama"}\n',
    "tokenizer.json": b"{}",
    "code/model.py": b"raise SystemExit\n",
}


@dataclass(frozen=True)
class Made:
    """A checkpoint to be written: its tensors in file order, their bytes, the file of each."""

    tensors: Mapping[str, TensorLayout]
    data: Mapping[str, bytes]
    files: Sequence[Sequence[str]]
    extras: tuple[str, ...] = ()

    def layout(self, order: Sequence[str], cuts: Mapping[str, Cut], tp: int) -> Layout:
        held = {}
        for name in order:
            if name not in self.extras:
                tensor = self.tensors[name]
                held[name] = TensorLayout(name, tensor.dtype, tensor.shape, cuts[name])
        return Layout(tp, "random", held, self.extras)

    def write(self, folder: Path) -> Checkpoint:
        folder.mkdir()
        for name, content in AUX.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        weight_map = {}
        for number, names in enumerate(self.files, 1):
            file = f"model-{number:05}-of-{len(self.files):05}.safetensors"
            weight_map |= dict.fromkeys(names, file)
            entries, position = [], 0
            for name in names:
                tensor = self.tensors[name]
                stop = position + len(self.data[name])
                entries.append((name, tensor.dtype, tensor.shape, position, stop))
                position = stop
            content = b"".join(self.data[name] for name in names)
            (folder / file).write_bytes(encode_header(entries, {"made": "by hand"}) + content)
        index = {"metadata": {"total_size": sum(map(len, self.data.values()))}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=3))
        return open_checkpoint(folder)

    def piece(self, name: str, cut: Cut, rank: int) -> bytes | None:
        """A rank's bytes of a tensor, sliced by numpy."""
        share = cut.shares[rank]
        if share is None:
            return None
        tensor = self.tensors[name]
        outer, size, inner = TensorLayout(name, tensor.dtype, tensor.shape, cut).fold()
        array = np.frombuffer(self.data[name], np.uint8).reshape(outer, size, inner)
        parts = [np.zeros((outer, 0, inner), np.uint8)]
        for source, length in share:
            zeros = np.zeros((outer, length, inner), np.uint8)
            parts.append(zeros if source is None else array[:, source : source + length])
        return np.concatenate(parts, axis=1).tobytes()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def flip(directory: Path, rank: int, tensor: str, byte: int = 0) -> None:
    """Changes one byte of a rank's piece of a tensor."""
    header = Presharded.open(directory).rank_header(rank)
    (stored,) = (held for held in header.tensors if held.name == tensor)
    content = bytearray((directory / header.name).read_bytes())
    content[stored.start + byte] ^= 1
    (directory / header.name).write_bytes(content)


def example(tp: int, width: int = 8, *, rows: int = 16, order: int = 1) -> tuple[Made, Layout]:
    """A checkpoint with each kind of cut, and its Layout; `order` -1 turns the rank files' order round."""
    padded = rows - 2
    kinds: dict[str, tuple[str, tuple[int, ...], Cut]] = {
        "embed": ("BF16", (padded, width), _even(0, padded, tp, rows // tp)),
        "column": ("BF16", (rows, width), _even(0, rows, tp, rows // tp)),
        "row": ("F32", (width, rows), _even(1, rows, tp, rows // tp)),
        "bias": ("F32", (width,), once(tp)),
        "norm": ("BF16", (width,), whole(tp)),
        "scale": ("F8_E4M3", (), whole(tp)),
        "empty": ("I64", (0, 3), whole(tp)),
        "left": ("F32", (width,), whole(tp)),
        "over": ("I64", (3,), whole(tp)),
    }
    tensors, data, cut = {}, {}, {}
    for number, (name, (dtype, shape, of)) in enumerate(kinds.items()):
        tensors[name], cut[name] = TensorLayout(name, dtype, shape, of), of
        random = np.random.default_rng(number)
        data[name] = random.integers(1, 256, nbytes(dtype, shape), np.uint8).tobytes()
    names = list(kinds)
    made = Made(tensors, data, [names[:2], names[2:6], names[6:]], ("left", "over"))
    return made, made.layout(names[::order], cut, tp)


def _even(dim: int, size: int, tp: int, each: int) -> Cut:
    """Equal shares, the last ones with zeros where the dimension ends before."""
    shares = []
    for start in range(0, tp * each, each):
        held = max(0, min(each, size - start))
        parts = [Segment(start, held), Segment(None, each - held)]
        shares.append(merge_adjacent(part for part in parts if part.length))
    return Cut(dim, size, tuple(shares))


@st.composite
def cuts(draw: st.DrawFn, dtype: str, shape: tuple[int, ...], tp: int) -> Cut:
    """Any cut of a tensor that holds every index at least once."""
    dims = [dim for dim in range(len(shape)) if BITS[dtype] * prod(shape[dim + 1 :]) % 8 == 0]
    dim = draw(st.sampled_from([None, *dims]))
    if dim is None:
        kind = draw(st.integers(0, 2))
        if kind == 2:
            holder = draw(st.integers(0, tp - 1))
            return Cut(None, 1, tuple((Segment(0, 1),) if rank == holder else None for rank in range(tp)))
        return once(tp) if kind else whole(tp)
    size = shape[dim]
    edges = sorted(draw(st.sets(st.integers(0, size), max_size=4)) | {0, size})
    shares: list[list[Segment]] = [[] for _ in range(tp)]
    for start, stop in pairwise(edges):
        for rank in draw(st.sets(st.integers(0, tp - 1), min_size=1, max_size=tp)):
            shares[rank].append(Segment(start, stop - start))
    for share in shares:
        for place in draw(st.sets(st.integers(0, len(share)), max_size=2)):
            share.insert(place, Segment(None, draw(st.integers(1, 3))))
    return Cut(
        dim, size, tuple(merge_adjacent(share) or draw(st.sampled_from([(), None])) for share in shares)
    )


@st.composite
def checkpoints(draw: st.DrawFn) -> Made:
    """A few tensors of any element type and shape (also 0-d, empty), in one to three files, some extras."""
    tensors, data = {}, {}
    for number in range(draw(st.integers(1, 5))):
        name = f"t{number}.weight"
        dtype = draw(st.sampled_from(sorted(BITS)))
        shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
        if BITS[dtype] % 8:
            shape = (*shape, 4)
        tensors[name] = TensorLayout(name, dtype, shape, whole(1))
        seed = np.random.default_rng(number)
        data[name] = seed.integers(0, 256, nbytes(dtype, shape), np.uint8).tobytes()
    names = draw(st.permutations(list(tensors)))
    count = draw(st.integers(1, 3))
    extras = draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    return Made(
        tensors, data, [f for f in (names[n::count] for n in range(count)) if f], tuple(sorted(extras))
    )


@st.composite
def layouts(draw: st.DrawFn, made: Made) -> Layout:
    tp = draw(st.integers(1, 4))
    found = {name: draw(cuts(tensor.dtype, tensor.shape, tp)) for name, tensor in made.tensors.items()}
    return made.layout(draw(st.permutations(list(made.tensors))), found, tp)
