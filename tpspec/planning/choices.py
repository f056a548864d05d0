"""Ways to use a number of devices: how many replicas of how many ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpspec.planning.report import Choice, SizePlan, Step


def rank_choices(
    sizes: Sequence[SizePlan], devices: int, batch: int, step: Callable[[int, int], Step]
) -> tuple[Choice, ...]:
    """The choices, best first: those that run the whole batch at a time, then by tokens per second.

    `step` gives one decode step of a replica of tp ranks with so many sequences.
    """
    choices = [_choice(size, devices, batch, step) for size in sizes]
    return tuple(sorted(choices, key=lambda c: (not c.fits, c.running < batch, -c.tokens_per_second, c.tp)))


def _choice(size: SizePlan, devices: int, batch: int, step: Callable[[int, int], Step]) -> Choice:
    replicas = devices // size.tp
    held = size.exact.sequences
    each = min(held, -(-batch // replicas))
    running = min(batch, each * replicas)
    seconds = step(size.tp, each).seconds if each else 0.0
    return Choice(
        tp=size.tp,
        replicas=replicas,
        idle=devices - replicas * size.tp,
        fits=held > 0,
        sequences=held * replicas,
        tokens=size.exact.tokens * replicas,
        running=running,
        step=seconds,
        tokens_per_second=running / seconds if seconds else 0.0,
    )
