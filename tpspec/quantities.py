"""Quantities as people read them: bytes, rates, numbers of things and seconds, three digits each."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes as `1.25 GiB`."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if count < 999.5:
            break
        count, unit = count / 1024, larger
    return f"{count:.3g} {unit}"


def rate(per_second: float, what: str = "B") -> str:
    """Bytes (or FLOP) per second as `3.35 TB/s`, in powers of a thousand as vendors count them."""
    unit = ""
    for larger in ("k", "M", "G", "T", "P"):
        if per_second < 999.5:
            break
        per_second, unit = per_second / 1000, larger
    return f"{per_second:.3g} {unit}{what}/s"


def many(count: float) -> str:
    """A number of things as `68.8k` or `1.56M`."""
    unit = ""
    for larger in ("k", "M", "B", "T"):
        if count < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.3g}{unit}"


def duration(seconds: float) -> str:
    """Seconds as `5.25 ms` or `10.2 µs`."""
    value, unit = seconds, "s"
    for smaller in ("ms", "µs"):
        if value >= 1:
            break
        value, unit = value * 1000, smaller
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
