"""One tensor parallel size: what ranks hold and keep, where they meet, and how long a step takes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from math import floor

from tpspec.cache import cache_dtype, cache_size
from tpspec.faults import labels
from tpspec.planning import formulas
from tpspec.planning.hardware import Hardware
from tpspec.planning.report import (
    Assumptions,
    Cache,
    Call,
    Capacity,
    Logits,
    Prefill,
    SizePlan,
    Step,
)
from tpspec.planning.weights import Inventory, axes, inventory
from tpspec.resolution import Resolution
from tpspec.resolve import resolve
from tpspec.sites import COLLECTIVES, Site, implied_sites

NEXT_TOKEN = "next token"  # noqa: S105 - a place, no secret
KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""Element types of a cache, and their bytes."""


@dataclass(frozen=True)
class Question:
    """What a plan is asked for.

    Without `sizes`, the usual ones that fit. `gpus` are devices to be used for `batch` sequences. `dtype`
    is the element type that the weights are cast to.
    """

    sizes: tuple[int, ...] = ()
    context: int = 8192
    batches: tuple[int, ...] = (1, 16, 64, 256)
    reserve: int = 4 << 30
    kv_dtype: str | None = None
    gpus: int | None = None
    batch: int = 64
    dtype: str | None = None


@dataclass(frozen=True)
class Basis:
    """What all sizes of a plan have in common."""

    resolution: Resolution
    hardware: Hardware
    question: Question

    @cached_property
    def stored(self) -> Inventory:
        return inventory(self.resolution)

    @cached_property
    def model(self) -> Inventory:
        """What is stored, or of a quantized checkpoint the model that it stands for, number by number."""
        resolution = self.resolution
        if not resolution.config.get("quantization_config"):
            return self.stored
        plain = {**resolution.config, "quantization_config": None}
        order = resolution.pad.order if resolution.pad else None
        return inventory(resolve(resolution.spec, plain, None, order))

    @cached_property
    def element(self) -> int:
        """Bytes of an activation's element."""
        return cache_dtype(self.resolution.config)[1]

    @cached_property
    def assumptions(self) -> Assumptions:
        asked, dtype = self.question, cache_dtype(self.resolution.config)[0]
        kv = asked.kv_dtype or dtype
        each = KV_BYTES.get(kv, self.element)
        return Assumptions(
            asked.context, asked.batches, asked.reserve, dtype, kv, each, asked.gpus, asked.batch
        )

    @cached_property
    def flops(self) -> float:
        """FLOP per second, of FP8 where most of the weights are stored so and the device has it."""
        rates = self.hardware.flops
        mostly = next(iter(self.stored.dtypes), "")
        return rates.get("fp8" if mostly.startswith("F8") else "bf16", rates["bf16"])


class AtSize:
    """All about one tp of a model; what is costly is computed once."""

    def __init__(self, basis: Basis, tp: int) -> None:
        self.basis = basis
        self.tp = tp
        hardware = basis.hardware
        self.across_nodes = tp > hardware.devices_per_node
        self.link = hardware.node_link if self.across_nodes else hardware.link
        self.latency = hardware.node_latency if self.across_nodes else hardware.latency
        self.pieces = basis.stored.at(tp)
        self.multiplied = basis.model.at(tp).multiplied()
        self.sites: list[Site] = implied_sites(basis.resolution, tp)
        self.calls = self._calls()
        self.cache = self._cache()

    def plan(self) -> SizePlan:
        """All about it."""
        basis, tp = self.basis, self.tp
        weights = self.pieces.weights()
        wire = sum(call.wire for call in self.calls if call.site != NEXT_TOKEN)
        return SizePlan(
            tp=tp,
            weights=weights,
            cache=self.cache,
            exact=self._capacity(weights.exact),
            simple=self._capacity(weights.simple),
            copies=basis.resolution.copies(tp),
            padding=self._padding(),
            calls=self.calls,
            all_reduces=sum(call.calls for call in self.calls if call.collective == "all_reduce"),
            wire_per_token=wire,
            intensity=formulas.intensity(basis.model.active, wire, tp) if wire else None,
            across_nodes=self.across_nodes,
            steps=tuple(self.step(batch) for batch in basis.question.batches),
            prefill=self._prefill(),
            logits=self._logits(),
        )

    def step(self, batch: int) -> Step:
        """One decode step of so many sequences."""
        bandwidth = self.basis.hardware.bandwidth
        read = self.pieces.read(batch)
        kept = batch * self.cache.of_sequence(self.basis.question.context)
        wire = sum(call.wire for call in self.calls) * batch
        return Step(
            batch,
            read,
            kept,
            wire,
            formulas.floor_seconds(read, bandwidth),
            formulas.floor_seconds(kept, bandwidth),
            formulas.compute_seconds(self.multiplied, batch, self.basis.flops),
            wire / self.link,
            sum(call.calls for call in self.calls) * self.latency,
        )

    def _prefill(self) -> Prefill:
        """Reading one prompt of the plan's context."""
        tokens = self.basis.question.context
        wire = sum(call.wire * (1 if call.site == NEXT_TOKEN else tokens) for call in self.calls)
        return Prefill(
            tokens,
            formulas.floor_seconds(self.pieces.read(tokens), self.basis.hardware.bandwidth),
            formulas.compute_seconds(self.multiplied, tokens, self.basis.flops),
            wire / self.link,
            sum(call.calls for call in self.calls) * self.latency,
        )

    def _cache(self) -> Cache:
        """Bytes of the cache; what is kept for a sequence has the model's element type, or its own."""
        resolution, each = self.basis.resolution, self.basis.assumptions.kv_bytes
        elements = cache_size(resolution.spec, resolution.config, self.tp, resolution.pad)
        kept = elements.in_bytes(self.basis.element, each)
        windows = tuple((window, size) for window, size in sorted(kept.windows.items()) if size)
        return Cache(kept.per_token, windows, kept.per_sequence)

    def _capacity(self, weights: float) -> Capacity:
        """What is left for caches beside so many bytes of weights."""
        question = self.basis.question
        pool = formulas.pool(self.basis.hardware.hbm, question.reserve, weights)
        each = self.cache.of_sequence(question.context)
        if not each:
            return Capacity(weights, pool, 0, 0)
        held = formulas.sequences(pool, each)
        return Capacity(weights, pool, floor(held * question.context), floor(held))

    def _padding(self) -> dict[str, tuple[int, int]]:
        """Axes that zero units fill up."""
        padded = {}
        for axis in axes(self.basis.resolution):
            units = axis.local(self.tp) * self.tp // axis.copies(self.tp)
            if units > axis.units:
                padded[axis.name] = (axis.units, units)
        return padded

    def _calls(self) -> tuple[Call, ...]:
        """The collectives of a pass; the logits are not gathered, for the choice exchanges candidates."""
        if self.tp == 1:
            return ()
        running = [site for site in self.sites if site.kind in COLLECTIVES and site.kind != "logits"]
        label = labels(site.module for site in running)
        alike: defaultdict[tuple[str, str], list[Site]] = defaultdict(list)
        for site in running:
            alike[COLLECTIVES[site.kind], label[site.module]].append(site)
        calls = []
        for (collective, place), sites in alike.items():
            payload = sum(site.payload(self.basis.element) * site.runs for site in sites)
            wire = formulas.WIRE[collective](payload, self.tp)
            calls.append(Call(collective, place, sum(site.runs for site in sites), payload, wire))
        exchange = formulas.exchange_wire(self.tp)
        return (*calls, Call("all_gather", NEXT_TOKEN, 1, formulas.CANDIDATE, exchange))

    def _logits(self) -> Logits:
        """All logits gathered, or candidates exchanged."""
        cuts = [site.cut for site in self.sites if site.kind == "logits" and site.cut]
        if not cuts:
            return Logits(0, 0, 0)
        part = cuts[0].length(0) * self.basis.element
        wire = formulas.all_gather_wire(part, self.tp)
        return Logits(part * self.tp, wire, formulas.exchange_wire(self.tp))
