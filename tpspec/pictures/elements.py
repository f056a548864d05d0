"""Elements of HTML and SVG as strings. Whatever is not `Markup` is text and gets escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""What XML forbids, and what would turn the direction of the text around it."""
_VOID = frozenset({"link", "meta"})
"""HTML elements that have no end tag."""

Value = str | float | None


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def element(tag: str, *children: str | Iterable[str], **attributes: Value) -> Markup:
    """`<tag attribute="…">children</tag>`.

    An attribute's name may end in `_` (`class_`), its other underscores are hyphens; one that is None is
    left out. Children are strings, or iterables of strings.
    """
    start = "".join(
        f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{start}>")
    return Markup(f"<{tag}{start}>{joined(children)}</{tag}>")


def joined(children: Iterable[str | Iterable[str]]) -> Markup:
    """Children one after another, without an element around them."""
    return Markup("".join(text(c) if isinstance(c, str) else joined(c) for c in children))


def text(content: str) -> Markup:
    """Text as markup: escaped, and without characters that no document may hold."""
    return content if isinstance(content, Markup) else Markup(escape(_UNPRINTABLE.sub("\ufffd", content)))


def number(value: float) -> str:
    """A coordinate or a length, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return text(value) if isinstance(value, str) else number(value)
