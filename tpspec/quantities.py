"""Quantities as people read them: bytes, tokens, seconds, three digits each."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes as `1.25 GiB`, three digits."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if count < 1000:
            break
        count, unit = count / 1024, larger
    return f"{count:.3g} {unit}"


def many(count: float) -> str:
    """A number of things as `68.8k` or `1.56M`, three digits."""
    for unit in ("", "k", "M", "G"):
        if count < 999.5:
            break
        count /= 1000
    return f"{count:.3g}{unit}"


def duration(seconds: float) -> str:
    """Seconds as `5.25 ms` or `10.2 µs`, three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            break
    value = seconds * factor
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
