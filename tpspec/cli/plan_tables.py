"""A plan's tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from tpspec.cli.tables import Bar, head, print_columns, print_wrapped
from tpspec.planning.report import PlanReport, SizePlan, Step
from tpspec.quantities import duration, many, size


def print_plan(report: PlanReport) -> None:
    """Prints what fits, how long a step takes, and what it means."""
    assumed, device = report.assumptions, report.hardware
    active = report.active_parameters
    used = f", {many(active)} used by a token" if active < 0.9 * report.parameters else ""
    name = click.style(report.model, bold=True)
    click.echo(
        f"{name} ({report.spec}): {many(report.parameters)} parameters{used}, {size(report.weight_bytes)}"
    )
    print_wrapped(
        f"{device.title}: {size(device.hbm)} each, {size(assumed.reserve)} of them reserved; "
        f"cache in {assumed.kv_dtype}, sequences of {assumed.context} tokens"
    )
    click.echo()
    print_columns(_capacity(report), flexible=KV)
    for refused in report.refused:
        more = f", and {len(refused.reasons) - 1} more" if len(refused.reasons) > 1 else ""
        pad = "; or: --pad" if refused.pad_fits else ""
        refusal = click.style(f"tp={refused.tp} does not fit:", fg="red")
        print_wrapped(f"{refusal} {refused.reasons[0]}{more}{pad}", "  ", "    ")
    click.echo(f"\n{click.style('a decode step', bold=True)}")
    print_columns(_steps(report))
    click.echo(f"\n{click.style('a pass', bold=True)}")
    print_columns(_passes(report))
    if report.choices:
        sequences = "one sequence" if assumed.batch == 1 else f"{assumed.batch} sequences"
        title = f"choices for {sequences} on {assumed.gpus} device{'s' * (assumed.gpus != 1)}, best first"
        click.echo(f"\n{click.style(title, bold=True)}")
        print_columns(_choices(report))
    click.echo()
    for advice in report.advice:
        print_wrapped(advice.text, f"  {click.style('→', fg='cyan')} ", "    ")
    for note in report.notes:
        print_wrapped(note, "  ", "    ", dim=True)


KV = 3
"""The column of what the cache takes, which for windows and states is a long one."""


def _capacity(report: PlanReport) -> Iterator[Sequence[str | Bar]]:
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
            Bar(plan.exact.tokens / most if most else 0, "green"),
        ]


def _more(plan: SizePlan) -> str:
    more = plan.weights.exact / plan.weights.simple - 1
    return f"+{more:.2%}" if more > 0 else "the same"


def _kept(plan: SizePlan) -> str:
    """A rank's cache: per token, per token up to a window, per sequence."""
    cache = plan.cache
    copied = click.style(f" ×{plan.copies['kv']}", fg="yellow") if "kv" in plan.copies else ""
    parts = [f"{size(cache.per_token)}{copied}"] if cache.per_token else []
    parts += [f"{size(each)}{copied} up to {window}" for window, each in cache.windows]
    parts += [f"{size(cache.per_sequence)} a sequence"] if cache.per_sequence else []
    return " + ".join(parts) or "none"


def _steps(report: PlanReport) -> Iterator[Sequence[str | Bar]]:
    """A line for each batch; a bar beside its time, or why it cannot run."""
    parts = ("weights", "cache", "arithmetic", "on the wire", "latency")
    yield [*head("tp", "batch", *parts, "tokens/s", "a step"), ""]
    held = [step.seconds for plan in report.sizes for step in plan.steps if not plan.why_not(step.batch)]
    longest = max(held, default=1)
    for plan in report.sizes:
        if not plan.exact.fits:
            yield [f"{plan.tp}", *[""] * (len(parts) + 3), click.style(plan.why_not(1), fg="red")]
            continue
        for number, step in enumerate(plan.steps):
            named = [f"{plan.tp}" if not number else "", f"{step.batch}"]
            if reason := plan.why_not(step.batch):
                yield [*named, *[""] * (len(parts) + 2), click.style(reason, fg="red")]
                continue
            yield [
                *named,
                _dominant(step.floor, step),
                _dominant(step.cache, step),
                _dominant(step.compute, step),
                _dominant(step.wire, step),
                _dominant(step.latency, step),
                many(step.batch / step.seconds),
                click.style(duration(step.seconds), bold=True),
                Bar(step.seconds / longest, "blue"),
            ]


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
            duration(plan.prefill.seconds) if plan.exact.fits else "–",
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
