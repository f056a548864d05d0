"""What a plan's numbers mean, in sentences that a person can act on. Every number in them is the report's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor

from tpspec.planning.hardware import Hardware
from tpspec.planning.report import Advice, Assumptions, Choice, Link, SizePlan, Step
from tpspec.quantities import duration, size

SLIGHT = 0.00005
"""A part of the weights that is 0.00% in print."""
ENOUGH = 0.95
"""A size that gives less than this part of what its devices are of another's is worth a sentence."""


def advise(
    sizes: Sequence[SizePlan],
    links: Sequence[Link],
    hardware: Hardware,
    assumptions: Assumptions,
    choices: Sequence[Choice],
    least: int | None = None,
) -> tuple[Advice, ...]:
    """The sentences: what fits, what more ranks bring to weights, cache and speed, and the best choice.

    `least` is the least tp that holds the model where no choice does.
    """
    ordered = sorted(sizes, key=lambda plan: plan.tp)
    return (
        *_fit(ordered, hardware, assumptions),
        *_weights(ordered),
        *_cache(ordered),
        *_speed(ordered, hardware),
        *_links(links, hardware),
        *_choice(choices, assumptions, least),
    )


def _fit(sizes: Sequence[SizePlan], hardware: Hardware, assumptions: Assumptions) -> Iterator[Advice]:
    room = size(hardware.hbm - assumptions.reserve)
    first = next((plan for plan in sizes if plan.exact.fits), None)
    if first is None:
        least = min(sizes, key=lambda plan: plan.weights.exact)
        text = (
            f"The weights fit at none of these sizes: at tp={least.tp} a rank holds "
            f"{size(least.weights.exact)}, and a device has room for {room}."
        )
        yield Advice("fit", text)
        return
    held = f"{size(first.weights.exact)} of the {room} of a device, which leaves {size(first.exact.pool)}"
    small = "the least" if first is not sizes[0] else "enough"
    text = f"tp={first.tp} is {small} for the weights: {held} for the cache"
    if not first.exact.sequences and first.exact.tokens:
        text += f", too little for one sequence of {assumptions.context} tokens"
    yield Advice("fit", f"{text}.")


def _weights(sizes: Sequence[SizePlan]) -> Iterator[Advice]:
    plan = sizes[-1]
    more = plan.weights.exact / plan.weights.simple - 1
    parts = {
        "copies of KV heads" if set(plan.copies) == {"kv"} else "copied units": plan.weights.copied,
        "what is whole on every rank": plan.weights.replicated,
        "zeros that fill up": plan.weights.zeros,
    }
    named = ", ".join(f"{name} {size(number)}" for name, number in parts.items() if number)
    if plan.exact.fits:
        freed = plan.weights.alone / 2
        text = (
            f"Twice the ranks of tp={plan.tp} would free at most {size(freed)} more on a device, "
            f"{freed / plan.exact.pool:.0%} of what its cache has."
        )
        yield Advice("weights", text)
    if more >= SLIGHT and named:
        text = f"At tp={plan.tp} a rank holds {more:.2%} more than 1/{plan.tp} of the weights: {named}."
        yield Advice("weights", text)


def _cache(sizes: Sequence[SizePlan]) -> Iterator[Advice]:
    """Where the cache grows faster than the devices, and where it stops to grow with them, first of each."""
    said: set[bool] = set()
    holding = [plan for plan in sizes if plan.exact.tokens]
    for less, more in pairwise(holding):
        devices, gain = more.tp / less.tp, more.exact.tokens / less.exact.tokens
        against, better = f"for {devices:g}× the devices", gain > devices
        if better in said or ENOUGH <= gain / devices <= 1 / ENOUGH:
            continue
        said.add(better)
        if better:
            left = less.exact.pool / (less.exact.pool + less.weights.exact)
            text = (
                f"tp={more.tp} holds {gain:.1f}× the tokens of tp={less.tp} {against}: at tp={less.tp} the "
                f"weights leave {left:.0%} of a device's room."
            )
            yield Advice("cache", text)
        else:
            text = f"tp={more.tp} {_change(gain)} KV tokens over tp={less.tp} {against}{_why(less, more)}"
            if more.tp % less.tp == 0:
                count = more.tp // less.tp
                text += f"; {count} replicas at tp={less.tp} hold {count:.1f}×"
            yield Advice("cache", f"{text}.")


def _change(gain: float) -> str:
    return f"adds {gain - 1:.0%}" if gain >= 1 else f"loses {1 - gain:.0%}"


def _why(less: SizePlan, more: SizePlan) -> str:
    """Why a rank's cache does not get smaller in proportion."""
    if "kv" in more.padding:
        return ": its {} KV heads are filled up to {}".format(*more.padding["kv"])
    if "kv" in more.copies:
        return f": its {more.tp // more.copies['kv']} KV heads are used up"
    if more.cache == less.cache and not more.copies:
        return ": a rank's cache is the same at both, whole on every rank"
    return ": part of the cache is copied, or whole on every rank"


def _speed(sizes: Sequence[SizePlan], hardware: Hardware) -> Iterator[Advice]:
    fitting = [plan for plan in sizes if plan.exact.fits]
    for less, more in pairwise(fitting):
        pairs = _both(less, more)
        slow = [(one, two) for one, two in pairs if two.seconds >= one.seconds * ENOUGH]
        if slow:
            yield Advice("speed", _stops(less, more, *slow[0], hardware))
            return
    if len(fitting) > 1:
        first, last = fitting[0], fitting[-1]
        gains = ", ".join(
            f"{one.seconds / two.seconds:.1f}× at batch {one.batch}" for one, two in _both(first, last)
        )
        devices = f"{last.tp / first.tp:g}× the devices"
    if len(fitting) > 1 and gains:
        yield Advice("speed", f"From tp={first.tp} to tp={last.tp}, {devices}, a step gets faster: {gains}.")


def _both(less: SizePlan, more: SizePlan) -> list[tuple[Step, Step]]:
    """The steps of the batches that both sizes hold."""
    pairs = zip(less.steps, more.steps, strict=True)
    return [(one, two) for one, two in pairs if not (less.why_not(one.batch) or more.why_not(two.batch))]


def _stops(less: SizePlan, more: SizePlan, one: Step, two: Step, hardware: Hardware) -> str:
    """Where more ranks no longer make a step faster, and what takes the time."""
    change = two.seconds / one.seconds - 1
    how = f"{change:.0%} slower than" if change >= 0.005 else "no faster than"
    if change >= 1:
        how = f"{change + 1:.0f}× as slow as"
    if change < -0.005:
        how = f"only {-change:.0%} faster than"
    left = ""
    if more.across_nodes and not less.across_nodes:
        left = f", which leave the node of {hardware.devices_per_node}"
    return (
        f"At batch {one.batch}, a step at tp={more.tp} is {how} at tp={less.tp} ({duration(two.seconds)} "
        f"against {duration(one.seconds)}): {duration(two.wire + two.latency)} of it are collectives{left}."
    )


def _links(links: Sequence[Link], hardware: Hardware) -> Iterator[Advice]:
    """Up to how many ranks arithmetic takes longer; nothing of models so small that it never does."""
    said = []
    for link, devices in zip(links, (hardware.devices_per_node, 0), strict=False):
        ranks = floor(link.break_even)
        few = f", fewer than its {devices} devices" if ranks < devices else ""
        said += [f"tp={ranks} {link.name}{few}"] if ranks > 1 else []
    if said:
        text = f"Reading long prompts, the arithmetic takes longer than the link up to {'; '.join(said)}."
        yield Advice("speed", text)


def _choice(choices: Sequence[Choice], assumptions: Assumptions, least: int | None) -> Iterator[Advice]:
    usable = [choice for choice in choices if choice.fits]
    if not usable:
        if assumptions.gpus:
            few = f"None of these sizes is for {assumptions.gpus} devices."
            text = _no_choice(assumptions, assumptions.gpus, least) if choices else few
            yield Advice("choice", text)
        return
    best = usable[0]
    text = (
        f"{best.replicas} × tp={best.tp} decodes {_sequences(best.running)} of {assumptions.context} tokens "
        f"at {best.tokens_per_second:.0f} tokens/s"
    )
    if len(usable) > 1:
        second = usable[1]
        more = best.tokens_per_second / second.tokens_per_second - 1
        text += (
            f", {more:.0%} more than {second.replicas} × tp={second.tp}"
            if more > 0
            else (f"; {second.replicas} × tp={second.tp} holds {second.running} of them at a time")
        )
    yield Advice("choice", f"{text}.")


def _no_choice(assumptions: Assumptions, devices: int, least: int | None) -> str:
    """That nothing holds the model, and what would."""
    what = f"the weights and a sequence of {assumptions.context} tokens"
    if least and least <= devices:
        return f"None of these sizes holds {what}; tp={least} is the least that does."
    enough = f"at least {least} do" if least else "nor does any number that tp can share it among"
    return f"{devices} device{' does' if devices == 1 else 's do'} not hold {what}; {enough}."


def _sequences(number: int) -> str:
    return f"{number} sequence" + "s" * (number > 1)
