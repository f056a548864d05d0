"""The files that a conversion writes: one per rank, and one for what no rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpspec.checkpoint import StoredTensor
from tpspec.converters.strips import turns
from tpspec.dtypes import nbytes
from tpspec.file_names import EXTRAS, rank_file
from tpspec.layout import Cut, Layout, Segment, Share, TensorLayout
from tpspec.safetensors_header import encode_header

METADATA = {"format": "pt"}
"""What save_pretrained writes, and transformers asks for."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A tensor as it is read, and how it is cut."""

    stored: StoredTensor
    layout: TensorLayout

    @property
    def nbytes(self) -> int:
        return self.stored.stop - self.stored.start

    def read_bytes(self, strip_bytes: int) -> int:
        """Bytes that are read of the tensor, in all its turns."""
        return self.nbytes * len(self.turns(strip_bytes))

    def turns(self, strip_bytes: int) -> tuple[int | None, ...]:
        """The turns in which the tensor is read; one without a number where once is enough."""
        count = turns(self.layout.fold(), self.layout.cut, strip_bytes)
        return tuple(range(count)) if count > 1 else (None,)


@dataclass(frozen=True)
class Target:
    """A file to write. Before the visit number v, `offsets[v]` of its bytes are there."""

    name: str
    rank: int
    header: bytes
    offsets: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        return int(self.offsets[-1])

    def share(self, cut: Cut) -> Share | None:
        return cut.shares[self.rank] if self.rank < cut.tp else None


def visits(tensors: dict[str, StoredTensor], layout: Layout, *, drop: bool) -> list[Visit]:
    """The tensors in the order in which they are read and written: those of the ranks, then the extras.

    The extras file is one more rank, number `layout.tp`, the only one that holds the extras.
    """
    found = [Visit(tensors[tensor.name], tensor) for tensor in layout.tensors.values()]
    apart = Cut(None, 1, (*(None,) * layout.tp, (Segment(0, 1),)))
    for name in () if drop else layout.extras:
        stored = tensors[name]
        found.append(Visit(stored, TensorLayout(name, stored.dtype, stored.shape, apart)))
    return found


def targets(plan: Sequence[Visit], tp: int) -> list[Target]:
    """Every file of a conversion: the ranks' in order, then the extras' where there are extras."""
    names = [rank_file(rank, tp) for rank in range(tp)]
    if any(visit.layout.cut.tp > tp for visit in plan):
        names.append(EXTRAS)
    return named_targets(names, plan)


def named_targets(names: Sequence[str], plan: Sequence[Visit]) -> list[Target]:
    """Files of these names, each with what the rank of its number holds."""
    return [_target(name, rank, plan) for rank, name in enumerate(names)]


def _target(name: str, rank: int, plan: Sequence[Visit]) -> Target:
    entries = []
    offsets = np.zeros(len(plan) + 1, np.int64)
    position = 0
    for number, visit in enumerate(plan):
        layout = visit.layout
        if rank < layout.cut.tp and layout.held_by(rank):
            shape = layout.local_shape(rank)
            start, position = position, position + nbytes(layout.dtype, shape)
            entries.append((layout.name, layout.dtype, shape, start, position))
        offsets[number + 1] = position
    header = encode_header(entries, METADATA)
    return Target(name, rank, header, offsets + len(header))
