"""A drawing in SVG: as part of a page, whose colours it takes, or as a file of its own, in light."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpspec.pictures.elements import Markup, Value, element, number, text
from tpspec.pictures.page import resource
from tpspec.pictures.palette import LIGHT

_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
WIDTH_OF_LETTER = 0.62
"""Of the font's size; wide, for a font is only known where it is drawn."""


@dataclass(frozen=True)
class Drawing:
    """`content` on a sheet of that many pixels; `title` says what it shows to those who do not see it."""

    width: float
    height: float
    title: str
    content: Markup

    def inline(self, class_: str | None = None) -> Markup:
        """The drawing as an element of a page, as wide as its place."""
        return element(
            "svg",
            self.content,
            viewBox=f"0 0 {number(self.width)} {number(self.height)}",
            role="img",
            aria_label=self.title,
            class_=class_,
        )

    def standalone(self) -> str:
        """An SVG document that needs nothing beside it."""
        style = _VARIABLE.sub(lambda name: LIGHT[name[1]], resource("figures.css"))
        drawn = element(
            "svg",
            element("title", self.title),
            element("style", style_sheet(style)),
            box(0, 0, self.width, self.height, class_="paper"),
            self.content,
            xmlns="http://www.w3.org/2000/svg",
            width=self.width,
            height=self.height,
            viewBox=f"0 0 {number(self.width)} {number(self.height)}",
            role="img",
        )
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn}\n'


def style_sheet(style: str) -> Markup:
    """CSS as content; the sheets of this package hold nothing that needs escaping."""
    return Markup(style)


def box(x: float, y: float, width: float, height: float, **attributes: Value) -> Markup:
    """A rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def words(x: float, y: float, content: str, class_: str = "", **attributes: Value) -> Markup:
    """A line of text on the baseline y."""
    return element("text", text(content), x=x, y=y, class_=class_ or None, **attributes)


def width_of(content: str, size: float) -> float:
    """About how wide a line of text is, at a font size."""
    return len(content) * size * WIDTH_OF_LETTER


def fitted(content: str, size: float, width: float) -> str:
    """A line of text, cut in the middle where it is too wide."""
    letters = int(width / (size * WIDTH_OF_LETTER))
    if len(content) <= letters:
        return content
    half = max(letters - 1, 2) // 2
    return f"{content[:half]}…{content[-half:]}"
