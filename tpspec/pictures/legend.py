"""What the looks of the shard map mean, as far as a map has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpspec.axes import Axis
from tpspec.pictures.palette import HUES, hue, look, pattern
from tpspec.pictures.pieces import kind, pieces
from tpspec.shard_map import MapRow


@dataclass(frozen=True)
class Entry:
    """Blocks, each with its class and its label, and what they mean."""

    blocks: tuple[tuple[str, str], ...]
    meaning: str


def legend(rows: Sequence[MapRow], tp: int) -> list[Entry]:
    """The entries of a map's legend."""
    kinds = {kind(row, piece) for row in rows for rank in range(tp) for piece in pieces(row, rank)}
    axes = {heads.name: heads for row in rows for _, heads in row.heads}
    entries = [_heads(axis, tp) for axis in axes.values()]
    if kinds & {"part", "other-part"}:
        blocks = tuple((name, "") for name in ("part", "other-part") if name in kinds)
        entries.append(
            Entry(
                blocks, "a part of the rows or columns" + (", and of the next matrix" if blocks[1:] else "")
            )
        )
    for name, text, meaning in (
        ("mixed", "", "parts that alternate"),
        ("whole", "", "whole"),
        ("zeros", "0", "zeros that fill up"),
    ):
        if name in kinds:
            entries.append(Entry(((name, text),), meaning))
    return entries


def _heads(axis: Axis, tp: int) -> Entry:
    first: dict[int, int] = {}
    for unit in range(axis.units):
        first.setdefault(look(axis, unit, tp), unit)
    blocks = tuple(
        (f"h{hue(shown)}" + (f" p{pattern(shown)}" if pattern(shown) else ""), str(unit))
        for shown, unit in list(first.items())[: len(HUES)]
    )
    noun = {"kv": "KV head", "q": "head"}.get(axis.name, axis.name)
    if len(first) > len(blocks):
        noun = f"… {noun}"
    copies = axis.copies(tp)
    if copies > 1:
        return Entry(blocks, f"{noun}, each on {copies} ranks")
    alone = axis.units <= len(HUES) or axis.local(tp) == 1
    return Entry(blocks, noun if alone else f"{noun}s, those of one rank alike")
