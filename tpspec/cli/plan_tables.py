"""A plan's tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from tpspec.cli.tables import head, print_columns
from tpspec.planning.report import PlanReport, SizePlan, Step
from tpspec.quantities import duration, many, size

EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDTH = 16


def print_plan(report: PlanReport) -> None:
    """Prints what fits, how long a step takes, and what it means."""
    assumed, device = report.assumptions, report.hardware
    active = report.active_parameters
    used = f", {many(active)} used by a token" if active < 0.9 * report.parameters else ""
    name = click.style(report.model, bold=True)
    click.echo(
        f"{name} ({report.spec}): {many(report.parameters)} parameters{used}, {size(report.weight_bytes)}"
    )
    click.echo(
        f"{device.title}: {size(device.hbm)} each, {size(assumed.reserve)} of them reserved; "
        f"cache in {assumed.kv_dtype}, sequences of {assumed.context} tokens"
    )
    click.echo()
    print_columns(_capacity(report))
    for refused in report.refused:
        more = f", and {len(refused.reasons) - 1} more" if len(refused.reasons) > 1 else ""
        text = f"tp={refused.tp} does not fit: {refused.reasons[0]}{more}"
        click.echo(f"  {click.style(text, fg='red')}")
    click.echo(f"\n{click.style('a decode step', bold=True)}")
    print_columns(_steps(report))
    click.echo(f"\n{click.style('a pass', bold=True)}")
    print_columns(_passes(report))
    if report.choices:
        click.echo(f"\n{click.style('choices, best first', bold=True)}")
        print_columns(_choices(report))
    click.echo()
    for advice in report.advice:
        click.echo(f"  {click.style('→', fg='cyan')} {advice.text}")
    for note in report.notes:
        click.echo(click.style(f"  {note}", dim=True))


def _capacity(report: PlanReport) -> Iterator[Sequence[str]]:
    weights, held = ("weights per rank", "total/tp"), ("left for the cache", "tokens", "sequences")
    yield [*head("tp", *weights, "KV per token", *held), ""]
    most = max((plan.exact.tokens for plan in report.sizes), default=0)
    for plan in report.sizes:
        yield [
            f"{plan.tp}",
            size(plan.weights.exact),
            click.style(f"{size(plan.weights.simple)} ({_more(plan)})", dim=True),
            _kept(plan),
            size(plan.exact.pool) if plan.exact.fits else click.style("too large", fg="red"),
            many(plan.exact.tokens),
            f"{plan.exact.sequences}",
            click.style(bar(plan.exact.tokens, most), fg="green"),
        ]


def _more(plan: SizePlan) -> str:
    more = plan.weights.exact / plan.weights.simple - 1
    return f"+{more:.2%}" if more > 0 else "the same"


def _kept(plan: SizePlan) -> str:
    """A rank's cache: per token, per token up to a window, per sequence."""
    cache = plan.cache
    parts = [size(cache.per_token)] if cache.per_token else []
    parts += [f"{size(each)} up to {window}" for window, each in cache.windows]
    parts += [f"{size(cache.per_sequence)} a sequence"] if cache.per_sequence else []
    copied = f" ×{plan.copies['kv']}" if "kv" in plan.copies else ""
    return " + ".join(parts) + click.style(copied, fg="yellow") if parts else "none"


def bar(value: float, most: float) -> str:
    """A bar of eighths of a character, as long as the value is of the most."""
    eighths = round(WIDTH * 8 * value / most) if most else 0
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _steps(report: PlanReport) -> Iterator[Sequence[str]]:
    parts = ("weights", "cache", "arithmetic", "on the wire", "latency")
    yield [*head("tp", "batch", *parts, "a step", "tokens/s"), ""]
    longest = max(step.seconds for plan in report.sizes for step in plan.steps)
    for plan in report.sizes:
        for number, step in enumerate(plan.steps):
            yield [
                f"{plan.tp}" if not number else "",
                _batch(step, plan),
                _dominant(step.floor, step),
                _dominant(step.cache, step),
                _dominant(step.compute, step),
                _dominant(step.wire, step),
                _dominant(step.latency, step),
                click.style(duration(step.seconds), bold=True),
                many(step.batch / step.seconds),
                click.style(bar(step.seconds, longest), fg="blue"),
            ]


def _batch(step: Step, plan: SizePlan) -> str:
    """The batch, and how many of it the cache holds at a time where that is fewer."""
    held = plan.exact.sequences
    few = click.style(f" ({held} fit)", fg="red") if step.batch > held and plan.cache.of_sequence(1) else ""
    return f"{step.batch}{few}"


def _dominant(seconds: float, step: Step) -> str:
    """A part of a step, coloured where it is the largest."""
    text = duration(seconds) if seconds else "–"
    largest = seconds == max(step.floor, step.cache, step.compute, step.wire, step.latency)
    return click.style(text, fg="yellow") if largest else text


def _passes(report: PlanReport) -> Iterator[Sequence[str]]:
    yield head(
        "tp",
        "all-reduces",
        "sent per token",
        "FLOP per byte",
        "prompt of one sequence",
        "logits",
        "candidates",
    )
    for plan in report.sizes:
        logits = plan.logits
        yield [
            f"{plan.tp}",
            f"{plan.all_reduces}",
            size(plan.wire_per_token),
            f"{plan.intensity:.0f}" if plan.intensity else "–",
            duration(plan.prefill.seconds),
            size(logits.gather_wire),
            size(logits.exchange_wire),
        ]


def _choices(report: PlanReport) -> Iterator[Sequence[str]]:
    yield head("replicas × tp", "idle", "sequences", "at a time", "a step", "tokens/s")
    for choice in report.choices:
        fits = choice.fits
        yield [
            f"{choice.replicas} × {choice.tp}",
            f"{choice.idle or ''}",
            f"{choice.sequences}" if fits else click.style("none", fg="red"),
            f"{choice.running}" if fits else "",
            duration(choice.step) if fits else "",
            f"{choice.tokens_per_second:.0f}" if fits else "",
        ]
