"""An export as planned: what is read in which order, and the files that an engine will find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tpspec.checkpoint import Checkpoint
from tpspec.converters.engines.pieces import PieceReader, read_as
from tpspec.converters.readers import Reader
from tpspec.converters.targets import METADATA, Target, Visit
from tpspec.dtypes import nbytes
from tpspec.engines.layout import EngineLayout, EngineTensor
from tpspec.file_names import EXPORT
from tpspec.layout import Cut, TensorLayout
from tpspec.safetensors_header import encode_header


@dataclass(frozen=True)
class Export:
    """An engine's layout of a source, its files `max_file_size` bytes at most where that is set."""

    source: Reader
    out: Path
    layout: EngineLayout
    max_file_size: int | None = None
    manifest: str = EXPORT

    @cached_property
    def reader(self) -> PieceReader:
        return PieceReader(self.source, self.layout)

    @property
    def original(self) -> Checkpoint:
        """Nothing: an export is not merged."""
        return self.reader.checkpoint

    @cached_property
    def parts(self) -> Sequence[Sequence[EngineTensor]]:
        """The tensors of each of a rank's files, which are parted alike on every rank."""
        tensors, limit = self.layout.tensors, self.max_file_size
        parts: list[list[EngineTensor]] = [[]]
        held = 0
        for tensor in tensors:
            size = nbytes(tensor.dtype, tensor.shape(0))
            if parts[-1] and limit is not None and held + size > limit:
                parts.append([])
                held = 0
            parts[-1].append(tensor)
            held += size
        return parts

    @cached_property
    def visits(self) -> Sequence[Visit]:
        """The pieces in the order in which they are read and written.

        Each file counts as a rank: rank r has the numbers from r * parts on.
        """
        return list(self._visits())

    def _visits(self) -> Iterator[Visit]:
        spread: dict[tuple[int, int], Cut] = {}
        for part, tensors in enumerate(self.parts):
            for tensor in tensors:
                for piece in tensor.pieces:
                    cut = piece.layout.cut
                    key = id(cut), part
                    if key not in spread:
                        spread[key] = self._in_part(cut, part)
                    yield Visit(read_as(piece), replace(piece.layout, cut=spread[key]))

    def _in_part(self, cut: Cut, part: int) -> Cut:
        parts = len(self.parts)
        if parts == 1:
            return cut
        shares = tuple(share if n == part else None for share in cut.shares for n in range(parts))
        return Cut(cut.dim, cut.size, shares)

    @cached_property
    def targets(self) -> Sequence[Target]:
        """Every file, rank by rank."""
        return [self._target(rank, part) for rank in range(self.layout.tp) for part in range(len(self.parts))]

    @cached_property
    def _kinds(self) -> tuple[npt.NDArray[np.int64], list[TensorLayout]]:
        """One piece of each type, shape and cut, and which of them each visit's is: a model has few."""
        found: dict[tuple[int, str, tuple[int, ...]], int] = {}
        kinds: list[TensorLayout] = []
        numbers = np.empty(len(self.visits), np.int64)
        for place, visit in enumerate(self.visits):
            layout = visit.layout
            key = id(layout.cut), layout.dtype, layout.shape
            if key not in found:
                found[key] = len(kinds)
                kinds.append(layout)
            numbers[place] = found[key]
        return numbers, kinds

    def _target(self, rank: int, part: int) -> Target:
        entries, position = [], 0
        number = rank * len(self.parts) + part
        offsets = np.zeros(len(self.visits) + 1, np.int64)
        for tensor in self.parts[part]:
            shape = tensor.shape(rank)
            start, position = position, position + nbytes(tensor.dtype, shape)
            entries.append((tensor.name, tensor.dtype, shape, start, position))
        kind_of, kinds = self._kinds
        sizes = np.array([layout.local_bytes(number) for layout in kinds], np.int64)
        np.cumsum(sizes[kind_of], out=offsets[1:])
        header = encode_header(entries, METADATA)
        return Target(f"model-rank-{rank}-part-{part}.safetensors", number, header, offsets + len(header))

    def fingerprint(self) -> dict[str, Any]:
        """What two runs must have in common to work on one directory."""
        engine, files = self.layout.engine, self.source.checkpoint.files
        digest = xxhash.xxh3_128()
        for tensor in self.layout.tensors:
            digest.update(f"{tensor.name} {tensor.dtype} {tensor.stacked}\n".encode())
            for piece in tensor.pieces:
                digest.update(f"{piece.layout.name} {piece.layout.shape} {piece.layout.cut}\n".encode())
        return {
            "engine": engine.engine,
            "tp": self.layout.tp,
            "--max-file-size": self.max_file_size,
            **{f"source {f.name}": [f.size, xxhash.xxh3_128(f.header).hexdigest()] for f in files},
            "tensors": digest.hexdigest(),
        }
