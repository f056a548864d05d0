"""Quantities as people write them: `80GiB`, `450 GB/s`, `989.4 TFLOP/s`, `5us`."""

from __future__ import annotations

import re
from math import isfinite
from typing import Literal

Kind = Literal["bytes", "rate", "flops", "time", "count"]

_BINARY: dict[str, float] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_DECIMAL: dict[str, float] = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SIZES = {f"{prefix}B": factor for prefix, factor in {**_BINARY, **_DECIMAL}.items()}
UNITS: dict[Kind, dict[str, float]] = {
    "bytes": _SIZES,
    "rate": {f"{unit}/s": factor for unit, factor in _SIZES.items()},
    "flops": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}FLOPS": factor for prefix, factor in _DECIMAL.items()},
    "count": {"": 1.0},
    "time": {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0},
}
EXAMPLES: dict[Kind, str] = {
    "bytes": "80GiB (2^30 bytes each) or 80GB (10^9)",
    "rate": "450GB/s or 3.35TB/s",
    "flops": "989.4TFLOP/s",
    "time": "5us",
    "count": "8",
}
_TEXT = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[^\d\s].*)?")


def parse_quantity(text: str, kind: Kind, *, zero: bool = False) -> float:
    """Bytes, bytes per second, FLOP per second, seconds or a count; with `zero`, that is one too.

    Raises ValueError with an example.
    """
    match = _TEXT.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text}' is not a quantity such as {EXAMPLES[kind]}")
    unit = (match["unit"] or "").strip()
    if unit not in UNITS[kind]:
        raise ValueError(f"'{text}': {_problem(unit, kind)}; write {EXAMPLES[kind]}")
    value = float(match["number"]) * UNITS[kind][unit]
    if not (isfinite(value) and value < 2**63) or (kind != "time" and 0 < value < 1):
        raise ValueError(f"'{text}' is out of bounds")
    if not value and not zero:
        raise ValueError(f"'{text}' must be above 0")
    if kind == "count" and value % 1:
        raise ValueError(f"'{text}' is not a whole number")
    return value


def _problem(unit: str, kind: Kind) -> str:
    if not unit:
        return "the unit is missing"
    bits = unit.replace("b", "B")
    if bits in UNITS[kind]:
        return f"'{unit}' are bits; bytes are {bits}"
    close = [known for known in UNITS[kind] if known.lower() == unit.lower()]
    return f"there is no unit '{unit}'" + (f"; do you mean {close[0]}?" if close else "")
