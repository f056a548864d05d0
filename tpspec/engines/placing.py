"""The cut that an engine makes of a tensor, where it is another than the Layout's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpspec.axes import held_units
from tpspec.cuts import Extent
from tpspec.engines.layout import Piece
from tpspec.engines.schema import Tensors
from tpspec.layout import Cut, Segment, TensorLayout, merge_adjacent, whole
from tpspec.resolution import Shared
from tpspec.sharing import Sharing


def engine_cut(item: Shared, tensors: Tensors | None, tp: int, vocabulary: int) -> Cut:
    """How an engine that fills vocabularies up to a multiple of `vocabulary` shares out a tensor.

    A row's bias is whole on every rank: the engine adds it on rank 0 alone. The tp divides what the
    vocabulary is filled up to.
    """
    sharing, rule = item.sharing, item.placed.rule
    if (tensors and tensors.whole) or (sharing.once and rule.tag != "once"):
        cut = whole(tp)
    elif is_vocabulary(item, tensors) and sharing.dim is not None:
        cut = vocabulary_cut(sharing.dim, sharing.size, vocabulary, tp)
    elif tensors and tensors.separate and sharing.interleaved:
        cut = separated(sharing, tp)
    else:
        cut = sharing.cut(tp)
    return transposed(cut, len(item.tensor.shape)) if tensors and tensors.transpose and item.tensor else cut


def is_vocabulary(item: Shared, tensors: Tensors | None = None) -> bool:
    """Whether a tensor's rows are filled up before they are shared out."""
    cut = item.placed.rule.tag == "vocab" and item.sharing.dim is not None and not item.sharing.once
    return cut and not (tensors and tensors.whole)


def filled_up(rows: int, multiple: int) -> int:
    """The rows that an engine makes of a vocabulary's."""
    return -(-rows // multiple) * multiple


def vocabulary_misfit(rows: int, multiple: int, tp: int) -> str:
    """The two numbers where a tp does not divide a filled up vocabulary; empty where it does."""
    filled = filled_up(rows, multiple)
    if filled % tp == 0:
        return ""
    more = f" are filled up to {filled}, a multiple of {multiple}" if filled > rows else ""
    return f"{rows} rows{more}: {filled} % {tp} = {filled % tp}"


def vocabulary_cut(dim: int, rows: int, multiple: int, tp: int) -> Cut:
    """Rows, filled up with zeros to a multiple, in equal runs."""
    local = filled_up(rows, multiple) // tp
    shares = []
    for rank in range(tp):
        held = max(0, min(local, rows - rank * local))
        shares.append(merge_adjacent((Segment(rank * local, held), Segment(None, local - held))))
    return Cut(dim, rows, tuple(shares))


def separated(sharing: Sharing, tp: int) -> Cut:
    """The cut of an interleaved dimension of which a rank holds one part after another."""
    assert sharing.dim is not None
    assert sharing.interleaved is not None
    groups = sharing.interleaved.units
    stride = sum(part.units // groups * part.width for part in sharing.parts)
    ranks = []
    for rank in range(tp):
        segments: list[Segment] = []
        start = 0
        for part in sharing.parts:
            segments += _of_part(part, groups, stride, start, tp, rank)
            start += part.units // groups * part.width
        ranks.append(merge_adjacent(segments))
    return Cut(sharing.dim, sharing.size, tuple(ranks))


def _of_part(part: Extent, groups: int, stride: int, start: int, tp: int, rank: int) -> list[Segment]:
    """A rank's units of a part, each where its group has it."""
    assert part.axis is not None
    per_group = part.units // groups
    return [
        Segment(None, part.width)
        if unit is None
        else Segment(unit // per_group * stride + start + unit % per_group * part.width, part.width)
        for unit in held_units(part.axis, tp, rank)
    ]


def side_by_side(pieces: Sequence[Piece], tp: int) -> Piece:
    """Matrices of as many rows as one that is read row by row of all of them; each keeps its own cut."""
    stored = [piece.stored for piece in pieces if piece.stored]
    ranks: list[list[Segment]] = [[] for _ in range(tp)]
    width = 0
    for piece in pieces:
        columns = piece.layout.shape[-1]
        for rank, share in enumerate(piece.layout.cut.shares):
            own = (Segment(0, columns),) if piece.layout.cut.dim is None else share or ()
            ranks[rank] += [
                Segment(None if source is None else width + source, length) for source, length in own
            ]
        width += columns
    first = pieces[0].layout
    cut = Cut(len(first.shape) - 1, width, tuple(merge_adjacent(segments) for segments in ranks))
    name = " beside ".join(tensor.name for tensor in stored)
    return Piece(None, TensorLayout(name, first.dtype, (*first.shape[:-1], width), cut), beside=tuple(stored))


def transposed(cut: Cut, ndim: int) -> Cut:
    """The cut of a tensor whose last two dimensions are swapped."""
    swapped = {ndim - 1: ndim - 2, ndim - 2: ndim - 1}
    return cut if cut.dim is None or ndim < 2 else replace(cut, dim=swapped.get(cut.dim, cut.dim))
