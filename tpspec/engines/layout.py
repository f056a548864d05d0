"""The Layout of an engine: every tensor of a rank, made of pieces of a checkpoint's tensors."""

from __future__ import annotations

from dataclasses import dataclass

from tpspec.checkpoint import StoredTensor
from tpspec.engines.schema import EngineDocument
from tpspec.layout import TensorLayout


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stored tensor gives to one of an engine's: its cut, and whether it is read transposed.

    Without a stored tensor it is several of them `beside` one another, each row of all of them a row, or a
    number, in every element.
    """

    stored: StoredTensor | None
    layout: TensorLayout
    transposed: bool = False
    number: float = 0
    beside: tuple[StoredTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One of an engine's tensors: its pieces follow one another in every rank's bytes.

    With `stacked`, so many tensors of as many pieces each are stacked. A `vector` has one number for
    each piece.
    """

    name: str
    pieces: tuple[Piece, ...]
    stacked: int | None = None
    vector: bool = False

    @property
    def dtype(self) -> str:
        return self.pieces[0].layout.dtype

    def shape(self, rank: int) -> tuple[int, ...]:
        """What a rank holds."""
        count = len(self.pieces) // (self.stacked or 1)
        joined = [piece.layout.local_shape(rank) for piece in self.pieces[:count]]
        if self.vector:
            shape: tuple[int, ...] = () if self.stacked and count == 1 else (count,)
        elif count == 1:
            shape = joined[0]
        else:
            shape = (sum(part[0] for part in joined), *joined[0][1:])
        return shape if self.stacked is None else (self.stacked, *shape)


@dataclass(frozen=True)
class EngineLayout:
    """Every tensor of every rank, in the order in which files store them.

    `release` is the engine's whose names they have.
    """

    engine: EngineDocument
    release: str
    family: str
    tp: int
    tensors: tuple[EngineTensor, ...]
