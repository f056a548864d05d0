"""Colours: of heads, of a step's parts, and of paper and ink in light and dark.

The hues of heads are Paul Tol's "light" scheme (Colour Schemes, SRON/EPS/TN/09-002, issue 3.2, 2021),
made for filling labelled cells and for the colour-blind; the text on them is dark in either theme.
After eight they come again under a pattern, and a label always says which head is meant.
"""

from __future__ import annotations

from tpspec.axes import Axis

HUES = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00")
PATTERNS = 8
"""A head's look is a hue and a pattern, plain at first; 64 looks in all."""

_BOTH = {f"hue{number}": colour for number, colour in enumerate(HUES)} | {"on-hue": "#15191e"}
LIGHT = _BOTH | {
    "paper": "#ffffff",
    "raised": "#f4f6f8",
    "ink": "#1a1f25",
    "muted": "#56606b",
    "rule": "#d3d9df",
    "edge": "#6b7683",
    "part": "#c6cfd9",
    "other-part": "#a9b6c4",
    "accent": "#1b62a5",
    "floor": "#3f78b0",
    "cache": "#a5c5e4",
    "compute": "#d5dade",
    "wire": "#e8a33a",
    "latency": "#c25a1c",
}
DARK = _BOTH | {
    "paper": "#14171b",
    "raised": "#1d2228",
    "ink": "#e8ebee",
    "muted": "#a3adb8",
    "rule": "#353c44",
    "edge": "#7f8a96",
    "part": "#55616e",
    "other-part": "#3f4954",
    "accent": "#7db8f0",
    "floor": "#4f8dc9",
    "cache": "#aecbe6",
    "compute": "#5a636c",
    "wire": "#e8a33a",
    "latency": "#d8713a",
}


def look(heads: Axis, unit: int, tp: int) -> int:
    """The look of a head (of KV heads, where they are what heads is about).

    Up to eight heads have a hue each. Where there are more, heads that share a rank share a look, so
    that ranks look alike only where they hold copies.
    """
    together = 1 if heads.units <= len(HUES) else heads.local(tp)
    return unit // together % (len(HUES) * PATTERNS)


def hue(number: int) -> int:
    """The hue of a look."""
    return number % len(HUES)


def pattern(number: int) -> int:
    """The pattern of a look; 0 is plain."""
    return number // len(HUES)
