"""What a cell and a row of the shard map say in words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tpspec.errors import clipped
from tpspec.pictures.pieces import Piece, part_names, pieces
from tpspec.quantities import many, size
from tpspec.shard_map import MapRow

NOUNS = {"q": "query head", "kv": "KV head"}
MAX_RUNS = 4
"""Runs of indices that a cell lists."""


def label(row: MapRow, piece: Piece) -> str:
    """The few letters that stand on a piece."""
    if piece.zeros:
        return "0"
    if piece.part is None:
        return "mixed"
    names = part_names(row)
    name = names[piece.part] if len(names) > 1 else ""
    if piece.look is None or piece.units is None:
        return name
    return name + (" " if len(name) > 1 else "") + _span(piece.units)


def held(row: MapRow, rank: int) -> str:
    """What a rank holds: heads, indices, copies and bytes."""
    found = pieces(row, rank)
    if not found:
        return "not held"
    runs = row.held(rank)
    shown = ", ".join(runs[:MAX_RUNS]) + (f" and {len(runs) - MAX_RUNS} more runs" if runs[MAX_RUNS:] else "")
    if row.cut and row.cut.dim is not None:
        shown = f"{_indices(row)} {shown}"
    parts = [_heads(row, found), shown, _others(row, rank), _bytes(row, rank)]
    return " · ".join(filter(None, parts))


def shared_out(row: MapRow) -> str:
    """How the row's tensors are shared out: `1 of 8 heads, copied ×2`."""
    cut = row.cut
    if cut is None:
        return "on no rank, kept for merging"
    shares = [_share(row)]
    copies = [count for _, _, count in cut.copies()] if cut.dim is not None else []
    if max(copies, default=1) > 1:
        part = "" if min(copies) > 1 else "in part "
        shares.append(f"{part}copied " + " and ".join(f"×{count}" for count in sorted({*copies} - {1})))
    zeros = [rank for rank in range(cut.tp) if cut.dim is not None and cut.zeros(rank)]
    if zeros:
        fill = sum(cut.zeros(rank) for rank in zeros)
        where = f"rank {zeros[0]}" if len(zeros) == 1 else f"ranks {zeros[0]}–{zeros[-1]}"
        shares.append(f"{fill} zeros on {where}")
    return ", ".join(shares)


def most_bytes(row: MapRow) -> int:
    """Bytes that the fullest rank holds of the row's tensors; 0 where the shape is not known."""
    if row.tensor is None:
        return 0
    return row.count * max(row.tensor.local_bytes(rank) for rank in range(row.tensor.cut.tp))


def bytes_per_rank(rows: Iterable[MapRow]) -> int:
    """Bytes that the fullest rank holds of all rows; 0 unless every shape is known."""
    held = [row for row in rows if row.cut is not None]
    if not held or any(row.tensor is None for row in held):
        return 0
    ranks = range(held[0].cut.tp if held[0].cut else 0)
    return max(sum(row.count * row.tensor.local_bytes(r) for row in held if row.tensor) for r in ranks)


def stored(row: MapRow) -> str:
    """Element type and shape, as stored."""
    return f"{row.tensor.dtype} [{', '.join(map(str, row.tensor.shape))}]" if row.tensor else ""


def title_of(model: str) -> str:
    """What to call a model that a command was given: its directory's name, its file's, or its id."""
    where = Path(model)
    if where.suffix != ".json":
        return where.name if where.exists() else model
    return where.resolve().parent.name if where.name == "config.json" else where.stem


def name_of(row: MapRow) -> str:
    """The row's name, shortened in the middle where it is absurdly long."""
    return clipped(row.name)


def _share(row: MapRow) -> str:
    cut, sharing = row.cut, row.sharing
    assert cut is not None
    if sharing.select:
        return f"whole, with its {_noun(sharing.select[0].name)}"
    if sharing.once:
        return "whole on rank 0, zeros elsewhere"
    if cut.dim is None:
        return "whole on every rank"
    heads = dict(row.heads)
    axes = [part.axis for part in sharing.parts]
    if sharing.blocks == 1 and all(axis and axis.name in heads for axis in axes):
        counts = [axis.local(cut.tp) for axis in axes if axis]
        if len(counts) == 1:
            return f"{counts[0]} of {row.sharing.axes[0].units} heads"
        runs = [
            (len(list(alike)), what) for what, alike in groupby(zip(counts, part_names(row), strict=True))
        ]
        terms = (f"{times} × {n} {name}" if times > 1 else f"{n} {name}" for times, (n, name) in runs)
        return " + ".join(terms) + " heads"
    held, whole = cut.length(0), cut.size
    count = len(axes) * sharing.blocks
    if count > 1 and len(set(axes)) == 1 and held % count == 0:
        return f"{count} × {held // count} of {whole // count} {_indices(row)}"
    return f"{held} of {whole} {_indices(row)}"


def _indices(row: MapRow) -> str:
    assert row.cut is not None
    ndim, dim = (len(row.tensor.shape) if row.tensor else 2), row.cut.dim
    if ndim == 1:
        return "elements"
    return {0: "rows", ndim - 1: "columns"}.get(dim or 0, f"indices of dimension {dim}")


def _heads(row: MapRow, found: tuple[Piece, ...]) -> str:
    """`query heads 4–7 of KV head 0`, or of a fused tensor `q 4–7, k 0, v 0`."""
    if not row.heads or any(piece.part is None for piece in found):
        return ""
    if row.sharing.select:
        return f"{_noun(row.heads[0][0])} {_span(found[0].units or (0, 1))}"
    names = part_names(row)
    spans = [
        (names[piece.part or 0], _span(piece.units))
        for piece in found
        if piece.look is not None and piece.units
    ]
    if len(names) > 1:
        return ", ".join(f"{name} {span}" for name, span in spans[: 2 * MAX_RUNS]) + (
            ", …" if spans[2 * MAX_RUNS :] else ""
        )
    ((name, heads),) = row.heads
    units = [piece.units for piece in found if piece.units]
    if not units:
        return ""
    first, count = units[0][0], sum(n for _, n in units)
    text = f"{plural(name) if count > 1 else _noun(name)} {_span((first, count))}"
    if heads.name == name or row.cut is None:
        return text
    axis = row.sharing.axes[0]
    low, high = first * heads.units // axis.units, (first + count - 1) * heads.units // axis.units
    owner = f"{plural(heads.name) if high > low else _noun(heads.name)} {_span((low, high - low + 1))}"
    return f"{text} of {owner}"


def _others(row: MapRow, rank: int) -> str:
    """The other ranks that hold the very same."""
    cut = row.cut
    if cut is None or cut.dim is None:
        return ""
    same = [other for other in range(cut.tp) if other != rank and cut.shares[other] == cut.shares[rank]]
    if not same or cut.shares[rank] is None:
        return ""
    return f"also on rank{'s' if same[1:] else ''} " + (
        ", ".join(map(str, same)) if len(same) <= MAX_RUNS else f"{same[0]} to {same[-1]}"
    )


def _bytes(row: MapRow, rank: int) -> str:
    if row.tensor is None:
        return ""
    each = size(row.tensor.local_bytes(rank))
    return f"{each} in each of {many(row.count)} tensors" if row.count > 1 else each


def plural(axis: str) -> str:
    """An axis's units by name: `KV heads`."""
    return f"{_noun(axis)}s"


def _noun(axis: str) -> str:
    return NOUNS.get(axis, axis)


def _span(units: tuple[int, int]) -> str:
    first, count = units
    return str(first) if count == 1 else f"{first}–{first + count - 1}"
