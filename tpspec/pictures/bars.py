"""Bars of several parts, and the key that names the parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tpspec.pictures.drawing import box, width_of, words
from tpspec.pictures.elements import Markup, element
from tpspec.pictures.scales import Scale

BAR, ROW, LEFT, RIGHT = 16.0, 22.0, 52.0, 64.0
"""Pixels: height of a bar and of its row, place for its name and for its sum."""


class Part(NamedTuple):
    """A part of a bar: its class, how much it is, and what it says under the mouse."""

    name: str
    amount: float
    said: str


def bar(name: str, parts: list[Part], total: str, x: Scale, y: float) -> Iterator[Markup]:
    """A bar with its name before and its sum after it."""
    yield words(LEFT - 8, y + 12.5, name, "quiet small end")
    start = 0.0
    for part in parts:
        if part.amount:
            left, right = x(start), x(start + part.amount)
            said = element("title", part.said)
            yield element("rect", said, x=left, y=y, width=right - left, height=BAR, class_=part.name)
            start += part.amount
    yield words(x(start) + 6, y + 12.5, total, "small")


def key(meanings: Mapping[str, str], width: float) -> tuple[list[Markup], float]:
    """What the classes mean, below a title, in as many lines as that takes; and where the last one ends."""
    drawn, x, y = [], 0.0, 26.0
    for name, meaning in meanings.items():
        wide = 18 + width_of(meaning, 12) + 10
        if x and x + wide > width:
            x, y = 0.0, y + 20
        drawn.append(box(x, y, 12, 12, class_=name))
        drawn.append(words(x + 18, y + 10.5, meaning, "quiet"))
        x += wide
    return drawn, y + 20
