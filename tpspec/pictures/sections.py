"""The shard map's rows in sections: layers that are alike, and what stands outside the layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tpspec.pictures.words import name_of
from tpspec.shard_map import MapRow

_LAYERS = re.compile(r"(?P<stem>(?:[^.]+\.)*?)(?P<numbers>\d[\d,-]*)\.(?P<rest>.+)", re.DOTALL | re.ASCII)
MAX_SPANS = 6
"""Spans of layers that a title lists."""


@dataclass(frozen=True)
class Section:
    """Rows under one title, which may be empty. `rows` are (short name, row); `note` counts the layers."""

    title: str
    note: str
    rows: tuple[tuple[str, MapRow], ...]


def sections(rows: Iterable[MapRow]) -> list[Section]:
    """Rows by the layers that they stand for, in the order of the spec; the model's ends around them."""
    found: dict[tuple[str, str], list[tuple[str, MapRow]]] = {}
    seen_layers = False
    for row in rows:
        match = _LAYERS.fullmatch(name_of(row))
        if match:
            seen_layers = True
            key, short = (match["stem"].rstrip("."), match["numbers"]), match["rest"]
        else:
            key, short = ("", "after" if seen_layers else "before"), name_of(row)
        found.setdefault(key, []).append((short, row))
    if not seen_layers:
        return [Section("", "", tuple(items)) for items in found.values()]
    if ("", "after") in found:
        found["", "after"] = found.pop(("", "after"))
    return [_section(stem, numbers, items) for (stem, numbers), items in found.items()]


def _section(stem: str, numbers: str, items: list[tuple[str, MapRow]]) -> Section:
    if numbers in ("before", "after"):
        return Section(f"{numbers} the layers", "", tuple(items))
    spans = list(_spans(numbers))
    count = sum(stop - start + 1 for start, stop in spans)
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in spans]
    if len(texts) > MAX_SPANS:
        texts = [*texts[: MAX_SPANS - 1], "…", texts[-1]]
    title = f"{stem} " if stem else ""
    return Section(title + ", ".join(texts), f"{count} layers, cut alike" if count > 1 else "", tuple(items))


def _spans(numbers: str) -> Iterator[tuple[int, int]]:
    for span in numbers.split(","):
        low, _, high = span.partition("-")
        if low.isdigit():
            yield int(low), int(high) if high.isdigit() else int(low)
