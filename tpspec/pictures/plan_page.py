"""The page of a plan: advice, the capacity curve, the step-time bars, and the shard map of each tp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tpspec.pictures.capacity_curve import capacity_curve, copied_beyond
from tpspec.pictures.drawing import Drawing
from tpspec.pictures.elements import Markup, element, joined
from tpspec.pictures.map_table import map_grid, map_numbers
from tpspec.pictures.memory_bars import memory_bars
from tpspec.pictures.page import page
from tpspec.pictures.step_bars import parts_of, step_bars
from tpspec.pictures.tables import table
from tpspec.pictures.words import plural, title_of
from tpspec.planning.hardware import Hardware
from tpspec.planning.report import Choice, PlanReport, Refused, SizePlan, Step
from tpspec.quantities import duration, many, rate, size
from tpspec.shard_map import MapRow

WIDE, NARROW = 620.0, 340.0
"""Pixels of a figure on a desk and on a phone, for which it is drawn apart so that text keeps its size."""


def plan_page(report: PlanReport, maps: Mapping[int, Sequence[MapRow]]) -> str:
    """The whole page. `maps` has the shard map's rows of each tp."""
    return page(
        heading(report),
        element("h1", heading(report)),
        element("p", premises(report), class_="lede"),
        element("ul", (element("li", advice.text) for advice in report.advice), class_="advice"),
        _figures(report) if report.sizes else "",
        _choices(report),
        _maps(report, maps) if maps else "",
        _rest(report),
    )


def heading(report: PlanReport) -> str:
    """The title of a plan."""
    return f"{title_of(report.model)}: what a tensor parallel size buys"


def premises(report: PlanReport) -> str:
    """What the plan was made for, in a sentence or two."""
    given, device = report.assumptions, report.hardware
    return (
        f"On {device.title}, {size(device.hbm)} each, {size(given.reserve)} of it held back. "
        f"{many(report.parameters)} parameters, {size(report.weight_bytes)}; sequences of {given.context} "
        f"tokens, their cache in {given.kv_dtype}."
    )


def choices_for(report: PlanReport) -> str:
    """What the choices are for, in words."""
    given = report.assumptions
    return (
        f"{given.batch} sequence{'s' * (given.batch > 1)} of {given.context} tokens on {given.gpus} devices"
    )


def _figures(report: PlanReport) -> Markup:
    sizes, given = report.sizes, report.assumptions
    hbm, reserve = report.hardware.hbm, given.reserve
    capacity = (
        element("h2", "Capacity"),
        _twice(lambda width: capacity_curve(sizes, width)),
        _twice(lambda width: memory_bars(sizes, hbm, reserve, width)),
    )
    time = (element("h2", "Time"), _twice(lambda width: step_bars(sizes, given.context, width)))
    return joined(
        [
            element("div", element("section", capacity), element("section", time), class_="pair"),
            element("h2", "The numbers: capacity"),
            _capacity_numbers(report),
            element("h2", "The numbers: one decode step"),
            _step_numbers(report),
            element("h2", "The numbers: one pass"),
            _pass_numbers(report),
        ]
    )


def _twice(draw: Callable[[float], Drawing]) -> Markup:
    return element("figure", draw(WIDE).inline("wide"), draw(NARROW).inline("narrow"))


def _capacity_numbers(report: PlanReport) -> Markup:
    titles = (
        "tp",
        "weights of a rank",
        "weights ÷ tp",
        "cache per token and rank",
        "room for the cache",
        "tokens held",
        "with weights ÷ tp",
        f"sequences of {report.assumptions.context}",
        "copied",
    )
    return table(titles, (_capacity_row(s) for s in report.sizes))


def _capacity_row(plan: SizePlan) -> tuple[str, ...]:
    exact, simple = plan.exact, plan.simple
    copies = ", ".join(f"{plural(axis)} ×{n}" for axis, n in plan.copies.items() if n > 1)
    return (
        str(plan.tp),
        size(plan.weights.exact),
        size(plan.weights.simple),
        size(plan.cache.per_token),
        size(exact.pool) if exact.fits else "no room",
        many(exact.tokens) if exact.fits else "no room",
        many(simple.tokens) if simple.fits else "no room",
        str(exact.sequences),
        copies or "–",
    )


def _step_numbers(report: PlanReport) -> Markup:
    titles = (
        "batch",
        "tp",
        "reading weights",
        "reading the cache",
        "arithmetic beyond",
        "bytes on the wire",
        "latency",
        "step",
        "tokens/s",
        "holds it",
    )
    pairs = ((plan, plan.steps[i]) for i in range(len(report.assumptions.batches)) for plan in report.sizes)
    return table(titles, (_step_row(plan, step) for plan, step in pairs))


def _step_row(plan: SizePlan, step: Step) -> tuple[str, ...]:
    named = (str(step.batch), str(plan.tp))
    if reason := plan.why_not(step.batch):
        return (*named, *["–"] * 7, reason)
    parts = (duration(seconds) if seconds else "0" for seconds in parts_of(step).values())
    return (*named, *parts, duration(step.seconds), many(step.batch / step.seconds), "yes")


def _pass_numbers(report: PlanReport) -> Markup:
    titles = (
        "tp",
        "all-reduces",
        "sent per token",
        "FLOP per byte sent",
        f"prompt of {report.assumptions.context} tokens",
        "logits, gathered",
        "candidates, exchanged",
    )
    return table(titles, (_pass_row(plan) for plan in report.sizes))


def _pass_row(plan: SizePlan) -> tuple[str, ...]:
    return (
        str(plan.tp),
        str(plan.all_reduces),
        size(plan.wire_per_token),
        f"{plan.intensity:.0f}" if plan.intensity else "–",
        duration(plan.prefill.seconds) if plan.exact.fits else "–",
        size(plan.logits.gather_wire),
        size(plan.logits.exchange_wire),
    )


def _choices(report: PlanReport) -> Markup:
    if not report.choices:
        return Markup()
    titles = (
        "tp",
        "replicas",
        "idle devices",
        "sequences held",
        "running",
        "step",
        "tokens/s",
        "tokens held",
    )
    return joined(
        [
            element("h2", f"Choices for {choices_for(report)}, best first"),
            table(titles, (_choice_row(choice) for choice in report.choices)),
        ]
    )


def _choice_row(choice: Choice) -> tuple[str, ...]:
    if not choice.fits:
        return (str(choice.tp), str(choice.replicas), str(choice.idle), "no room", "–", "–", "–", "–")
    return (
        str(choice.tp),
        str(choice.replicas),
        str(choice.idle),
        many(choice.sequences),
        many(choice.running),
        duration(choice.step),
        many(choice.tokens_per_second),
        many(choice.tokens),
    )


def _maps(report: PlanReport, maps: Mapping[int, Sequence[MapRow]]) -> Markup:
    """A map for each tp, of which one is open: the first with copies, else the largest."""
    copied = [plan.tp for plan in report.sizes if any(count > 1 for count in plan.copies.values())]
    shown = min(copied, default=max(maps))
    beyond = (
        f" {' and '.join(map(plural, axes))} are copied beyond tp {units}."
        for units, axes in copied_beyond(report.sizes).items()
    )
    said = "What each rank holds of each tensor." + "".join(beyond)
    parts = (_map(plan, maps[plan.tp], is_open=plan.tp == shown) for plan in report.sizes)
    return joined([element("h2", "Shard map"), element("p", said, class_="lede"), parts])


def _map(plan: SizePlan, rows: Sequence[MapRow], *, is_open: bool) -> Markup:
    note = f"{size(plan.weights.exact)} of weights on a rank"
    return element(
        "details",
        element("summary", f"tp {plan.tp} ", element("span", note, class_="note")),
        element("figure", map_grid(rows, plan.tp, f"Shard map of tp {plan.tp}")),
        map_numbers(rows),
        open="" if is_open else None,
    )


def _rest(report: PlanReport) -> Markup:
    return joined(
        [
            _list("Sizes that do not fit", [_refusal(r) for r in report.refused]),
            _list("What the numbers leave out", report.notes),
            element("h2", "The hardware, and where its figures are from"),
            table(("figure", "value", "source"), _figures_of(report.hardware)),
        ]
    )


def _refusal(refused: Refused) -> str:
    pad = "; or: --pad" if refused.pad_fits else ""
    return f"tp {refused.tp}: {'; '.join(refused.reasons)}{pad}"


def _figures_of(device: Hardware) -> list[tuple[str, ...]]:
    values = {
        "hbm": ("memory of a device", size(device.hbm)),
        "bandwidth": ("bandwidth of its memory", rate(device.bandwidth)),
        **{f"flops.{kind}": (f"arithmetic in {kind}", rate(n, "FLOP")) for kind, n in device.flops.items()},
        "link": ("link inside a node, per direction", rate(device.link)),
        "devices_per_node": ("devices of a node", str(device.devices_per_node)),
        "node_link": ("link across nodes, per direction", rate(device.node_link)),
        "latency": ("latency λ of a collective inside a node", duration(device.latency)),
        "node_latency": ("latency λ of a collective across nodes", duration(device.node_latency)),
    }
    return [(*said, device.sources.get(name, "")) for name, said in values.items()]


def _list(title: str, lines: Sequence[str]) -> Markup:
    items = [element("li", line) for line in lines]
    return joined([element("h2", title), element("ul", items, class_="small")]) if items else Markup()
