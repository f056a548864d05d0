"""From a resolved model, a device and what is asked to a plan's report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor
from typing import Literal

from tpspec.cache import cache_dtype, cache_size
from tpspec.faults import labels
from tpspec.planning import formulas
from tpspec.planning.advice import advise
from tpspec.planning.choices import rank_choices
from tpspec.planning.hardware import Hardware
from tpspec.planning.report import (
    Assumptions,
    Cache,
    Call,
    Capacity,
    Choice,
    Link,
    Logits,
    PlanReport,
    Prefill,
    Refused,
    SizePlan,
    Step,
)
from tpspec.planning.weights import Inventory, axes, inventory, unsaid
from tpspec.resolution import Resolution
from tpspec.sites import COLLECTIVES, Site, implied_sites

NEXT_TOKEN = "next token"  # noqa: S105 - a place, no secret
KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""Element types of a cache, and their bytes."""
USUAL_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Question:
    """What a plan is asked for.

    Without `sizes`, the usual ones that fit. `gpus` are devices to be used for `batch` sequences.
    """

    sizes: tuple[int, ...] = ()
    context: int = 8192
    batches: tuple[int, ...] = (1, 16, 64, 256)
    reserve: int = 4 << 30
    kv_dtype: str | None = None
    gpus: int | None = None
    batch: int = 64


def make_plan(
    model: str, resolution: Resolution, hardware: Hardware, question: Question, *, headers: bool
) -> PlanReport:
    """The report. Raises TpspecError where the model does not match its spec, or no size fits."""
    if resolution.findings:
        resolution.check(1)
    planner = _Planner(resolution, hardware, question)
    sizes = question.sizes or tuple(tp for tp in USUAL_SIZES if resolution.fits(tp))
    planned = tuple(planner.size(tp) for tp in sizes if resolution.fits(tp))
    refused = tuple(
        Refused(tp, tuple(str(misfit.finding()) for misfit in resolution.misfits(tp)))
        for tp in sizes
        if not resolution.fits(tp)
    )
    if not planned:
        resolution.check(refused[0].tp)
    choices: tuple[Choice, ...] = ()
    if question.gpus:
        widths = [tp for tp in resolution.valid_tp if tp <= question.gpus]
        choices = rank_choices(
            [planner.size(tp) for tp in widths], question.gpus, question.batch, planner.step
        )
    links = planner.links()
    return PlanReport(
        model,
        resolution.spec.name,
        headers,
        planner.stored.parameters,
        round(planner.stored.active),
        planner.stored.nbytes,
        hardware,
        planner.assumptions,
        planned,
        refused,
        links,
        advise(planned, links, hardware, planner.assumptions, choices),
        choices,
        tuple(_notes(resolution, planner, headers=headers)),
    )


class _Planner:
    def __init__(self, resolution: Resolution, hardware: Hardware, question: Question) -> None:
        self.resolution = resolution
        self.hardware = hardware
        self.question = question
        self.stored: Inventory = inventory(resolution)
        dtype, element = cache_dtype(resolution.config)
        kv = question.kv_dtype or dtype
        self.element = element
        self.assumptions = Assumptions(
            question.context, question.batches, question.reserve, dtype, kv, KV_BYTES.get(kv, element)
        )
        self.flops = hardware.flops["bf16"]
        self._sites: dict[int, list[Site]] = {}

    def size(self, tp: int) -> SizePlan:
        """All about one tp."""
        weights, cache = self.stored.weights(tp), self.cache(tp)
        calls = self.calls(tp)
        wire = sum(call.wire for call in calls if call.site != NEXT_TOKEN)
        return SizePlan(
            tp=tp,
            weights=weights,
            cache=cache,
            exact=self.capacity(weights.exact, cache),
            simple=self.capacity(weights.simple, cache),
            copies={axis: tp // n for axis, n in self.resolution.copied_above if tp > n},
            padding=self.padding(tp),
            calls=calls,
            all_reduces=sum(call.calls for call in calls if call.collective == "all_reduce"),
            wire_per_token=wire,
            intensity=formulas.intensity(self.stored.active, wire, tp) if wire else None,
            across_nodes=tp > self.hardware.devices_per_node,
            steps=tuple(self.step(tp, batch) for batch in self.question.batches),
            prefill=self.prefill(tp),
            logits=self.logits(tp),
        )

    def cache(self, tp: int) -> Cache:
        """Bytes of the cache; what is kept for a sequence has the model's own element type."""
        elements = cache_size(self.resolution.spec, self.resolution.config, tp, self.resolution.pad)
        each = self.assumptions.kv_bytes
        windows = tuple((window, n * each) for window, n in sorted(elements.windows.items()) if n)
        return Cache(elements.per_token * each, windows, elements.per_sequence * self.element)

    def capacity(self, weights: float, cache: Cache) -> Capacity:
        """What is left for caches beside so many bytes of weights."""
        pool = formulas.pool(self.hardware.hbm, self.question.reserve, weights)
        context = self.question.context
        each = cache.of_sequence(context)
        if not each:
            return Capacity(weights, pool, 0, 0)
        held = formulas.sequences(pool, each)
        return Capacity(weights, pool, floor(held * context), floor(held))

    def padding(self, tp: int) -> dict[str, tuple[int, int]]:
        """Axes that zero units fill up."""
        padded = {}
        for axis in axes(self.resolution):
            units = axis.local(tp) * tp // axis.copies(tp)
            if units > axis.units:
                padded[axis.name] = (axis.units, units)
        return padded

    def sites(self, tp: int) -> list[Site]:
        if tp not in self._sites:
            self._sites[tp] = implied_sites(self.resolution, tp)
        return self._sites[tp]

    def calls(self, tp: int) -> tuple[Call, ...]:
        """The collectives of a pass; the logits are not gathered, for the choice exchanges candidates."""
        if tp == 1:
            return ()
        running = [site for site in self.sites(tp) if site.kind in COLLECTIVES and site.kind != "logits"]
        label = labels(site.module for site in running)
        alike: defaultdict[tuple[str, str], list[Site]] = defaultdict(list)
        for site in running:
            alike[COLLECTIVES[site.kind], label[site.module]].append(site)
        calls = []
        for (collective, place), sites in alike.items():
            payload = sum(site.payload(self.element) * site.runs for site in sites)
            wire = formulas.WIRE[collective](payload, tp)
            calls.append(Call(collective, place, sum(site.runs for site in sites), payload, wire))
        exchange = formulas.exchange_wire(tp)
        return (*calls, Call("all_gather", NEXT_TOKEN, 1, formulas.CANDIDATE, exchange))

    def link(self, tp: int) -> tuple[float, float]:
        """Bandwidth and λ of what carries the collectives."""
        hardware = self.hardware
        if tp > hardware.devices_per_node:
            return hardware.node_link, hardware.node_latency
        return hardware.link, hardware.latency

    def step(self, tp: int, batch: int) -> Step:
        """One decode step of so many sequences."""
        calls = self.calls(tp)
        bandwidth, latency = self.link(tp)
        read = self.stored.read(tp, batch)
        kept = batch * self.cache(tp).of_sequence(self.question.context)
        wire = sum(call.wire for call in calls) * batch
        return Step(
            batch,
            read,
            kept,
            wire,
            formulas.floor_seconds(read, self.hardware.bandwidth),
            formulas.floor_seconds(kept, self.hardware.bandwidth),
            formulas.compute_seconds(self.stored.multiplied(tp), batch, self.flops),
            wire / bandwidth,
            sum(call.calls for call in calls) * latency,
        )

    def prefill(self, tp: int) -> Prefill:
        """Reading one prompt of the plan's context."""
        tokens = self.question.context
        calls = self.calls(tp)
        bandwidth, latency = self.link(tp)
        wire = sum(call.wire * (1 if call.site == NEXT_TOKEN else tokens) for call in calls)
        read = self.stored.read(tp, tokens)
        return Prefill(
            tokens,
            formulas.floor_seconds(read, self.hardware.bandwidth),
            formulas.compute_seconds(self.stored.multiplied(tp), tokens, self.flops),
            wire / bandwidth,
            sum(call.calls for call in calls) * latency,
        )

    def logits(self, tp: int) -> Logits:
        """All logits gathered, or candidates exchanged."""
        cuts = [site.cut for site in self.sites(tp) if site.kind == "logits" and site.cut]
        if not cuts:
            return Logits(0, 0, 0)
        part = cuts[0].length(0) * self.element
        return Logits(part * tp, formulas.all_gather_wire(part, tp), formulas.exchange_wire(tp))

    @cached_property
    def summed(self) -> int:
        """Bytes that a rank gives to all-reduces for one token; they do not depend on tp."""
        tp = next((tp for tp in self.resolution.valid_tp if tp > 1), 0)
        sites = self.sites(tp) if tp else []
        return sum(
            site.payload(self.element) * site.runs
            for site in sites
            if COLLECTIVES.get(site.kind) == "all_reduce"
        )

    def links(self) -> tuple[Link, ...]:
        """How far each link carries."""
        if not self.summed:
            return ()
        inside, across = self.hardware.link, self.hardware.node_link
        return self._link("inside a node", inside), self._link("across nodes", across)

    def _link(self, name: Literal["inside a node", "across nodes"], bandwidth: float) -> Link:
        balance = formulas.balance(self.flops, bandwidth)
        even = formulas.break_even_tp(self.stored.active, self.summed, balance)
        return Link(name, bandwidth, balance, even)


def _notes(resolution: Resolution, planner: _Planner, *, headers: bool) -> list[str]:
    notes = []
    if not headers:
        notes.append(
            f"names, shapes and element types are what {resolution.spec.where} makes of the config, "
            f"weights in {planner.assumptions.dtype}; with the checkpoint's headers they are its own"
        )
    left_out = unsaid(resolution)
    if left_out:
        notes.append(f"not counted, since the config does not give their shapes: {', '.join(left_out)}")
    optional = [
        p.template for p in resolution.spec.rules if p.rule.optional and p.rule.tag not in ("once", "unused")
    ]
    if optional and not headers:
        notes.append(f"not counted, since a checkpoint may lack them: {', '.join(dict.fromkeys(optional))}")
    if resolution.spec.active and not any(kind.experts for kind in planner.stored.kinds):
        notes.append("the config does not say how many experts a token uses: all are counted as read")
    if not (resolution.spec.cache):
        notes.append(f"{resolution.spec.where} has no cache: every step reads all tokens again")
    notes.append(
        "times are floors: activations, attention to earlier tokens, kernels and scheduling come on top"
    )
    return notes


def usual_context(config: Mapping[str, object], context: int) -> int:
    """The context, or all positions that the model has where those are fewer."""
    positions = config.get("max_position_embeddings")
    return min(context, positions) if isinstance(positions, int) and positions > 0 else context
