"""Quantities as people read them: bytes, rates, numbers of things and seconds, three digits each."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes as `1.25 GiB`."""
    value, unit = _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return f"{value:.3g} {unit}"


def rate(per_second: float, what: str = "B") -> str:
    """Bytes (or FLOP) per second as `3.35 TB/s`, in powers of a thousand as vendors count them."""
    value, unit = _scaled(per_second, 1000, ("", "k", "M", "G", "T", "P"))
    return f"{value:.3g} {unit}{what}/s"


def many(count: float) -> str:
    """A number of things as `68.8k` or `1.56M`."""
    value, unit = _scaled(count, 1000, ("", "k", "M", "B", "T"))
    return f"{value:.3g}{unit}"


def _scaled(value: float, step: int, units: tuple[str, ...]) -> tuple[float, str]:
    """A value in the first unit that three digits do for, and that unit; the last one where none is."""
    for unit in units[:-1]:
        if value < 999.5:
            return value, unit
        value /= step
    return value, units[-1]


def duration(seconds: float) -> str:
    """Seconds as `5.25 ms` or `10.2 µs`."""
    value, unit = seconds, "s"
    for smaller in ("ms", "µs"):
        if value >= 1:
            break
        value, unit = value * 1000, smaller
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
