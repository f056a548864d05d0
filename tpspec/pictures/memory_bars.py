"""The memory bars: what one device holds, by tp."""

from __future__ import annotations

from collections.abc import Sequence

from tpspec.pictures.bars import LEFT, RIGHT, ROW, Part, bar, key
from tpspec.pictures.drawing import Drawing, line, words
from tpspec.pictures.elements import Markup, joined
from tpspec.pictures.scales import Scale, linear
from tpspec.planning.report import SizePlan
from tpspec.quantities import size as in_bytes

PARTS = {
    "floor": "weights, cut",
    "several": "weights on several ranks",
    "cache": "room for the cache",
    "reserve": "kept free",
}


def memory_bars(sizes: Sequence[SizePlan], hbm: int, reserve: int, width: float) -> Drawing:
    """The fullest rank's device: weights, room for the cache, and what is kept free."""
    x = linear(max(hbm, *(size.weights.exact for size in sizes)), LEFT, width - RIGHT - 20)
    drawn: list[Markup] = [words(0, 14, "Memory of one device", "strong")]
    parts, y = key(PARTS, width)
    drawn += parts
    y += 24
    bottom = y + ROW * len(sizes)
    drawn.append(line(x(0), y - 4, x(0), bottom - 2, "axis"))
    drawn += (
        joined(bar(f"tp {s.tp}", _parts(s, reserve), _said(s), x, y + ROW * i)) for i, s in enumerate(sizes)
    )
    drawn += _limit(x, hbm, y, bottom)
    said = "; ".join(f"tp {s.tp}: weights {in_bytes(s.weights.exact)}, {_said(s)}" for s in sizes)
    return Drawing(width, bottom + 8, f"Memory of one device, {in_bytes(hbm)}. {said}", joined(drawn))


def _limit(x: Scale, hbm: int, top: float, bottom: float) -> list[Markup]:
    """Where the device's memory ends."""
    return [
        line(x(hbm), top - 4, x(hbm), bottom - 2, "mark"),
        words(x(hbm), top - 9, in_bytes(hbm), "quiet small middle"),
    ]


def _parts(size: SizePlan, reserve: int) -> list[Part]:
    weights = size.weights
    amounts = (
        weights.alone,
        weights.copied + weights.replicated + weights.zeros,
        max(0.0, size.exact.pool),
        reserve if size.exact.fits else 0,
    )
    return [
        Part(name, amount, f"tp {size.tp}, {meaning}: {in_bytes(amount)}")
        for (name, meaning), amount in zip(PARTS.items(), amounts, strict=True)
    ]


def _said(size: SizePlan) -> str:
    return f"room {in_bytes(size.exact.pool)}" if size.exact.fits else "no room"
