"""The step-time bars: where a decode step's time goes, by batch and tp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpspec.pictures.bars import LEFT, RIGHT, ROW, Part, bar, key
from tpspec.pictures.drawing import Drawing, line, words
from tpspec.pictures.elements import Markup, joined
from tpspec.pictures.scales import Scale, linear, ticks
from tpspec.planning.report import SizePlan, Step
from tpspec.quantities import duration

PARTS = {
    "floor": "reading weights",
    "cache": "reading the cache",
    "compute": "arithmetic beyond that",
    "wire": "bytes on the wire",
    "latency": "latency of collectives",
}
NARROW = 500.0
"""Pixels below which an axis has fewer numbers."""


def parts_of(step: Step) -> dict[str, float]:
    """A step's seconds, part by part; arithmetic counts where it takes longer than memory."""
    beyond = max(0.0, step.compute - step.floor - step.cache)
    seconds = (step.floor, step.cache, beyond, step.wire, step.latency)
    return dict(zip(PARTS, seconds, strict=True))


def step_bars(sizes: Sequence[SizePlan], context: int, width: float) -> Drawing:
    """One decode step: a group of bars for each batch, a bar for each tp that holds it."""
    steps = [(size, step) for size in sizes for step in size.steps]
    longest = max((step.seconds for size, step in steps if not size.why_not(step.batch)), default=1e-3)
    x = linear(longest, LEFT, width - RIGHT)
    marks = ticks(longest, 4 if width < NARROW else 6)
    drawn = [words(0, 14, "Time of one decode step", "strong")]
    parts, y = key(PARTS, width)
    drawn += parts
    y += 24
    drawn += (words(x(at), y - 6, duration(at) if at else "0", "quiet small middle") for at in marks)
    for number, batch in enumerate(step.batch for step in sizes[0].steps):
        sequences = "one sequence" if batch == 1 else f"{batch} sequences"
        drawn.append(words(0, y + 14, f"{sequences} of {context} tokens", "small strong"))
        y += 22
        bottom = y + ROW * len(sizes)
        drawn += (line(x(at), y - 3, x(at), bottom - 3, "grid" if at else "axis") for at in marks)
        drawn += (joined(_bar(size, size.steps[number], x, y + ROW * i)) for i, size in enumerate(sizes))
        y = bottom + 8
    said = "; ".join(
        f"tp {size.tp}, batch {step.batch}: {size.why_not(step.batch) or duration(step.seconds)}"
        for size, step in steps
    )
    return Drawing(width, y + 4, f"Time of one decode step. {said}", joined(drawn))


def _bar(size: SizePlan, step: Step, x: Scale, y: float) -> Iterator[Markup]:
    name, reason = f"tp {size.tp}", size.why_not(step.batch)
    if reason:
        yield words(LEFT - 8, y + 12.5, name, "quiet small end")
        yield words(LEFT + 6, y + 12.5, reason, "quiet small halo")
        return
    where = f"{name}, batch {step.batch}"
    parts = [
        Part(part, seconds, f"{where}, {PARTS[part]}: {duration(seconds)}")
        for part, seconds in parts_of(step).items()
    ]
    yield from bar(name, parts, duration(step.seconds), x, y)
