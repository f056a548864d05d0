"""Small checkpoints in which every number is different, cut through the command line.

The numbers count up through the whole checkpoint and none is zero, so that each row of a rank's
tensor can be traced to the row of the checkpoint that it came from, and zero fill is seen as such.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import safetensors

from tpspec.checkpoint import open_checkpoint
from tpspec.cli.app import main
from tpspec.layout import Layout, TensorLayout
from tpspec.resolve import resolve_layout
from tpspec.safetensors_header import encode_header

Array = np.ndarray
Arrays = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "uint16": "BF16",
    "uint8": "F8_E4M3",
    "int32": "I32",
    "int64": "I64",
}
"""numpy dtype → what it stands for in a file: numpy itself has no bfloat16 and no float8."""
ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Run:
    """What one run of the command line came to."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Tiny:
    """A checkpoint on disk, with its tensors as they were written and the user's spec, if it needs one."""

    folder: Path
    tensors: Arrays
    spec: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """`--spec FILE`, or nothing."""
        return ("--spec", str(self.spec)) if self.spec else ()

    def layout(self, tp: int) -> Layout:
        """The Layout by itself, without conversion."""
        return resolve_layout(open_checkpoint(self.folder), tp, self.spec)

    def validate(self, tp: int) -> Run:
        """`tpspec validate`."""
        return tpspec("validate", self.folder, "--tp", tp, *self.options)

    def out(self, tp: int) -> Path:
        """Where `cut` and `refusal` convert to."""
        return self.folder.with_name(f"{self.folder.name}-tp{tp}")

    def cut(self, tp: int) -> list[dict[str, Array]]:
        """Each rank's tensors, from the files that `tpspec convert` wrote.

        On the way they are held against the Layout, verified against the source, and merged into
        files that have to be the source's, byte for byte.
        """
        out, merged = self.out(tp), self.folder.with_name(f"{self.folder.name}-tp{tp}-merged")
        accepted("convert", self.folder, out, "--tp", tp, *self.options)
        accepted("verify", out, "--against", self.folder)
        accepted("merge", out, merged)
        for path in self.folder.iterdir():
            assert (merged / path.name).read_bytes() == path.read_bytes(), path.name
        ranks = [load(rank_path(out, rank, tp)) for rank in range(tp)]
        layout = self.layout(tp)
        for rank, arrays in enumerate(ranks):
            assert set(arrays) == {tensor.name for tensor in layout.of_rank(rank)}
            for name, array in arrays.items():
                expected = _taken(self.tensors[name], layout.tensors[name], rank)
                np.testing.assert_array_equal(array, expected, err_msg=f"{name} of rank {rank}")
        return ranks

    def held(
        self,
        ranks: Iterable[Arrays],
        name: str,
        units: str,
        width: int | Mapping[str, int] = 1,
        *,
        dim: int = 0,
    ) -> list[str]:
        """What each rank holds of a tensor, in units of it: see `held` below."""
        return [held(rank[name], self.tensors[name], units, width, dim=dim) for rank in ranks]

    def refusal(self, tp: int) -> str:
        """What `tpspec convert` says when it refuses; it has to leave nothing behind."""
        run = tpspec("convert", self.folder, self.out(tp), "--tp", tp, *self.options)
        assert run.status == 1, run
        assert not self.out(tp).exists()
        return run.err


def tpspec(*args: object) -> Run:
    """Runs the command line in this process, error boundary included."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["tpspec", *map(str, args)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            return Run(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main always exits")


def accepted(*args: object) -> str:
    """Runs a command that has to succeed; its output."""
    run = tpspec(*args)
    assert run.status == 0, run.err or run.out
    return run.out


def rank_path(out: Path, rank: int, tp: int) -> Path:
    """A rank's file in a pre-sharded directory."""
    return out / f"model-rank-{rank:05}-of-{tp:05}.safetensors"


def checkpoint(
    folder: Path,
    config: Mapping[str, object],
    shapes: Shapes,
    *,
    spec: str = "",
    given: Arrays | None = None,
    files: int = 1,
) -> Tiny:
    """Writes a checkpoint of float32 tensors of these shapes, and of those given.

    `spec` is the text of a spec, written beside the checkpoint; without one the built-in spec is used.
    Several files come with an index.
    """
    tensors = {**numbered(shapes), **(given or {})}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if files == 1:
        save(folder / ONE, tensors)
    else:
        shards = {shard_name(n, files): list(tensors)[n - 1 :: files] for n in range(1, files + 1)}
        for shard, names in shards.items():
            save(folder / shard, {name: tensors[name] for name in names})
        total = sum(array.nbytes for array in tensors.values())
        write_index(folder, {name: shard for shard, names in shards.items() for name in names}, total)
    return Tiny(folder, tensors, spec_file(folder.parent, spec) if spec else None)


def shard_name(number: int, count: int) -> str:
    """The name of one of several files, counted from 1."""
    return f"model-{number:05}-of-{count:05}.safetensors"


def write_index(folder: Path, weight_map: Mapping[str, str], total_size: int) -> None:
    """The index of several files."""
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(weight_map)}
    (folder / INDEX).write_text(json.dumps(index, indent=2))


def spec_file(folder: Path, text: str) -> Path:
    """A user's spec."""
    path = folder / "own.yaml"
    path.write_text(f"spec: 1\narchitecture: own\n{text}")
    return path


def repeated(prefix: str, count: int, block: Shapes) -> dict[str, tuple[int, ...]]:
    """The tensors of a block, for each of `count` layers."""
    return {f"{prefix}.{layer}.{name}": shape for layer in range(count) for name, shape in block.items()}


def linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a linear with a bias."""
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a LayerNorm with a bias."""
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def numbered(shapes: Shapes) -> dict[str, Array]:
    """Float32 tensors that count 1, 2, 3… from one to the next."""
    tensors, start = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        tensors[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    assert start < 1 << 24, "float32 counts no further"
    return tensors


def save(path: Path, tensors: Arrays) -> None:
    """A safetensors file of these tensors in this order."""
    entries, stop = [], 0
    for name, array in tensors.items():
        start, stop = stop, stop + array.nbytes
        entries.append((name, DTYPES[array.dtype.name], array.shape, start, stop))
    path.write_bytes(
        encode_header(entries, {"format": "pt"}) + b"".join(a.tobytes() for a in tensors.values())
    )


def load(path: Path) -> dict[str, Array]:
    """A file's tensors, as the reference implementation of safetensors reads them."""
    numpy_dtype = {stored: name for name, stored in DTYPES.items()}
    return {
        name: np.frombuffer(bytes(entry["data"]), numpy_dtype[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in safetensors.deserialize(path.read_bytes())
    }


def held(local: Array, whole: Array, units: str, width: int | Mapping[str, int] = 1, *, dim: int = 0) -> str:
    """The units that a rank's tensor is made of, such as `q0 q1 k0 v0`; `-` is a row of zeros.

    `units` names those of the whole tensor in their order along `dim`; a unit is `width` rows, or
    as many as `width` gives for its kind. A unit whose rows are not all there and in order is given
    row by row: `q0.1`.
    """
    rows = list(_rows_of(units, width))
    labels = {row.tobytes(): label for row, label in zip(np.moveaxis(whole, dim, 0), rows, strict=True)}
    assert len(labels) == len(rows), "rows that cannot be told apart"
    found = [labels.get(row.tobytes()) if row.any() else ("-", 0) for row in np.moveaxis(local, dim, 0)]
    assert None not in found, "a row that is none of the checkpoint's"
    words: list[str] = []
    position = 0
    while position < len(found):
        unit = found[position][0]
        complete = [row for row in rows if row[0] == unit] or [("-", 0)]
        if found[position : position + len(complete)] == complete:
            words.append(unit)
            position += len(complete)
        else:
            words.append("{}.{}".format(*found[position]))
            position += 1
    return " ".join(words)


def names(kinds: str, count: int) -> str:
    """`names("q", 3)` is `q0 q1 q2`; several kinds follow one another."""
    return " ".join(f"{kind}{number}" for kind in kinds.split() for number in range(count))


def _rows_of(units: str, width: int | Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for unit in units.split():
        kind = unit.rstrip("0123456789")
        for row in range(width if isinstance(width, int) else width[kind]):
            yield unit, row


def _taken(whole: Array, tensor: TensorLayout, rank: int) -> Array:
    """A rank's piece by the Layout's segments alone."""
    cut = tensor.cut
    share = cut.shares[rank] or ()
    if cut.dim is None:
        return whole if share[0].source is not None else np.zeros_like(whole)
    pieces = [
        np.zeros_like(whole.take(range(length), cut.dim, mode="wrap"))
        if source is None
        else whole.take(range(source, source + length), cut.dim)
        for source, length in share
    ]
    return np.concatenate(pieces, cut.dim)
