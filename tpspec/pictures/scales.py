"""Axes: where a value lies on a drawing, and the round numbers along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log2, log10

Scale = Callable[[float], float]
"""A value's place, in pixels."""


def linear(top: float, start: float, stop: float) -> Scale:
    """Values from 0 to `top`, from one place to another."""
    return lambda value: start + (stop - start) * value / top


def doubling(values: Sequence[float], start: float, stop: float) -> Scale:
    """Values of which each doubling is one step, from the least to the largest."""
    low, high = log2(min(values)), log2(max(values))
    if low == high:
        return lambda _: (start + stop) / 2
    return lambda value: start + (stop - start) * (log2(value) - low) / (high - low)


def ticks(top: float, most: int) -> list[float]:
    """Round numbers from 0 to `top`, `most` steps of 1, 2 or 5 times a power of ten at the most."""
    step = 10.0 ** floor(log10(top / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if top / (step * factor) <= most)
    return [number * step for number in range(ceil(top / step) + 1) if number * step <= top]
