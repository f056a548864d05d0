"""A checkpoint's tensors as an engine's are made of them: as they are, transposed, side by side, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tpspec.checkpoint import Checkpoint, StoredTensor
from tpspec.converters.readers import Reader, ReaderOver
from tpspec.converters.sinks import Bytes
from tpspec.dtypes import nbytes
from tpspec.engines.layout import EngineLayout, Piece

TRANSPOSED = " transposed"
"""What stands after the name of a tensor that is read so."""


def read_as(piece: Piece) -> StoredTensor:
    """The tensor to ask a `PieceReader` for."""
    stored, layout = piece.stored, piece.layout
    if stored is None:
        return StoredTensor(
            layout.name, layout.dtype, layout.shape, "", 0, nbytes(layout.dtype, layout.shape)
        )
    return replace(stored, name=stored.name + TRANSPOSED, shape=layout.shape) if piece.transposed else stored


def _filled(piece: Piece) -> Bytes:
    """The bytes of a piece that is a number. A bfloat16 is the upper half of a float32."""
    dtype, shape = piece.layout.dtype, piece.layout.shape
    if dtype == "BF16":
        return np.full(shape, piece.number, "<f4").reshape(-1).view("<u2")[1::2].copy().view(np.uint8)
    return np.full(shape, piece.number, {"F32": "<f4", "F16": "<f2"}[dtype]).reshape(-1).view(np.uint8)


class PieceReader(ReaderOver):
    """Reads what pieces are cut from."""

    def __init__(self, reader: Reader, layout: EngineLayout) -> None:
        super().__init__(reader)
        self._transposed: Mapping[str, StoredTensor] = {
            piece.stored.name + TRANSPOSED: piece.stored
            for tensor in layout.tensors
            for piece in tensor.pieces
            if piece.stored and piece.transposed
        }

        made = [piece for tensor in layout.tensors for piece in tensor.pieces if piece.stored is None]
        self._beside = {piece.layout.name: piece.beside for piece in made if piece.beside}
        self._numbers = {piece.layout.name: _filled(piece) for piece in made if not piece.beside}

    @property
    def checkpoint(self) -> Checkpoint:
        """The source without files: nothing rebuilds them from an export."""
        source = self._reader.checkpoint
        return Checkpoint(source.directory, source.config, ())

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        """Fills `out` with the bytes from `start` on of what `read_as` gave for a piece."""
        if tensor.name in self._numbers:
            out[:] = self._numbers[tensor.name][start : start + out.size]
        elif tensor.name in self._beside:
            self._read_beside(self._beside[tensor.name], start, out)
        elif tensor.name in self._transposed:
            self._read_transposed(self._transposed[tensor.name], start, out)
        else:
            super().read(tensor, start, out)

    def _read_beside(self, members: Sequence[StoredTensor], start: int, out: Bytes) -> None:
        """Reads a run of matrices side by side: whole rows of each, and of those what was asked for."""
        widths = [nbytes(member.dtype, member.shape[-1:]) for member in members]
        line = sum(widths)
        first, skipped = divmod(start, line)
        count = -(-(skipped + out.size) // line)
        rows = np.empty((count, line), np.uint8)
        at = 0
        for member, width in zip(members, widths, strict=True):
            held = np.empty(count * width, np.uint8)
            self._reader.read(member, first * width, held)
            rows[:, at : at + width] = held.reshape(count, width)
            at += width
        out[:] = rows.reshape(-1)[skipped : skipped + out.size]

    def _read_transposed(self, stored: StoredTensor, start: int, out: Bytes) -> None:
        """Reads a run of a transposed tensor: a few columns of what is stored at a time."""
        rows, columns = stored.shape[-2:]
        width = nbytes(stored.dtype, (1,))
        line = rows * width
        at = 0
        while at < out.size:
            first, skipped = divmod(start + at, line)
            matrix, column = divmod(first, columns)
            count = min(columns - column, -(-(skipped + out.size - at) // line))
            held = self._columns(stored, matrix, column, count).reshape(rows, count, width)
            turned = np.ascontiguousarray(held.swapaxes(0, 1)).reshape(-1)
            part = turned[skipped : skipped + out.size - at]
            out[at : at + part.size] = part
            at += part.size

    def _columns(self, stored: StoredTensor, matrix: int, column: int, count: int) -> Bytes:
        """Some columns of one of the stored matrices; all of it is read where that is no more than twice."""
        rows, columns = stored.shape[-2:]
        width = nbytes(stored.dtype, (1,))
        base, row_bytes = matrix * rows * columns * width, columns * width
        if 2 * count >= columns:
            whole = np.empty(rows * row_bytes, np.uint8)
            self._reader.read(stored, base, whole)
            return whole.reshape(rows, row_bytes)[:, column * width : (column + count) * width]
        held = np.empty((rows, count * width), np.uint8)
        for row in range(rows):
            self._reader.read(stored, base + row * row_bytes + column * width, held[row])
        return held

    def digests(self) -> dict[str, str]:
        return {}
