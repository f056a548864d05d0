"""What a plan says: numbers per tensor parallel size, and sentences. Bytes, seconds and tokens throughout.

Nothing here computes; tpspec.planning.plan makes a report, and tables, pages and JSON are drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tpspec.planning.hardware import Hardware
from tpspec.quantities import many


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a plan was made for. `reserve`: bytes of a device that neither weights nor cache may have."""

    context: int
    batches: tuple[int, ...]
    reserve: int
    dtype: str
    """The element type of the activations (`bfloat16`), which is that of config.json."""
    kv_dtype: str
    kv_bytes: int
    """Bytes of one element of the cache."""
    gpus: int | None
    """Devices that the choices share out, for `batch` sequences."""
    batch: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of weights. `ranks` is what each rank holds, `simple` all that is read, divided by tp.

    The other four say what a rank's bytes are, on average: held by it `alone`, `copied` onto some others too
    (KV heads above their number), whole on every rank (`replicated`), or `zeros` that fill up (vocabulary
    rows, biases that rank 0 counts).
    """

    ranks: tuple[int, ...]
    simple: float
    alone: float
    copied: float
    replicated: float
    zeros: float

    @property
    def exact(self) -> int:
        """The fullest rank's bytes."""
        return max(self.ranks)


@dataclass(frozen=True, slots=True)
class Cache:
    """Bytes that one rank keeps: for each token, for each token up to a window, and once for a sequence."""

    per_token: int
    windows: tuple[tuple[int, int], ...]
    per_sequence: int

    def of_sequence(self, context: int) -> int:
        """Bytes on one rank of one sequence of `context` tokens."""
        windowed = sum(min(context, window) * size for window, size in self.windows)
        return self.per_sequence + context * self.per_token + windowed


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a replica of tp devices holds beside its weights, under one budget of weight bytes per rank.

    `pool` is what a rank has for its cache; below zero, the weights do not fit. `tokens` are held in
    sequences of the plan's context, of which `sequences` are whole ones.
    """

    weights: float
    pool: float
    tokens: int
    sequences: int

    @property
    def fits(self) -> bool:
        """Whether the weights leave room."""
        return self.pool > 0


@dataclass(frozen=True, slots=True)
class Call:
    """Collectives of one kind of site in one forward pass.

    `calls` a pass; for each token of the pass, all calls together: `payload` bytes that a rank gives, and
    `wire` bytes that it sends at the least (ring). For the choice of the next token, each sequence counts
    as one token.
    """

    collective: str
    site: str
    calls: int
    payload: float
    wire: float


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of `batch` sequences with `context` tokens each, on one rank: bytes, and seconds.

    `floor` is the time to read the weights once (input embedding left out, experts as far as the batch
    uses them), `cache` to read what the sequences have kept, `compute` the arithmetic, `wire` the
    collectives' bytes at the link's speed, `latency` λ for each collective.
    """

    batch: int
    weight_bytes: float
    cache_bytes: float
    wire_bytes: float
    floor: float
    cache: float
    compute: float
    wire: float
    latency: float

    @property
    def seconds(self) -> float:
        """Memory or arithmetic, whichever takes longer, and the collectives after it."""
        return max(self.floor + self.cache, self.compute) + self.wire + self.latency

    @property
    def wire_share(self) -> float:
        """The collectives' bytes in units of the floor."""
        return self.wire / self.floor

    @property
    def latency_share(self) -> float:
        """The collectives' latency in units of the floor."""
        return self.latency / self.floor


@dataclass(frozen=True, slots=True)
class Prefill:
    """Reading one prompt of the plan's context, on one rank: seconds, as in Step."""

    tokens: int
    floor: float
    compute: float
    wire: float
    latency: float

    @property
    def seconds(self) -> float:
        """Memory or arithmetic, whichever takes longer, and the collectives after it."""
        return max(self.floor, self.compute) + self.wire + self.latency


@dataclass(frozen=True, slots=True)
class Logits:
    """Two ways to the next token, bytes for one sequence: all logits gathered, or candidates exchanged.

    `gathered` is what each rank then has, the other two what each rank sends.
    """

    gathered: float
    gather_wire: float
    exchange_wire: float


@dataclass(frozen=True, slots=True)
class SizePlan:
    """One tensor parallel size that fits the model's shapes."""

    tp: int
    weights: Weights
    cache: Cache
    exact: Capacity
    simple: Capacity
    copies: Mapping[str, int]
    """Axes whose units are copied, and on how many ranks each unit is."""
    padding: Mapping[str, tuple[int, int]]
    """Axes that zero units fill up: stored and padded number of units."""
    calls: tuple[Call, ...]
    all_reduces: int
    """All-reduces of one pass."""
    wire_per_token: float
    """Bytes that a rank sends for each token of a pass, the choice of the next token left out."""
    intensity: float | None
    """Arithmetic per byte on the wire, FLOP/byte; None where nothing is sent."""
    across_nodes: bool
    """Whether the ranks span several nodes, so that the slower link carries the collectives."""
    steps: tuple[Step, ...]
    """One for each of the plan's batches."""
    prefill: Prefill
    logits: Logits

    def why_not(self, batch: int) -> str:
        """Why so many sequences of the context cannot run at a time; empty where they can."""
        if not self.exact.fits:
            return "the weights do not fit"
        held = self.exact.sequences
        if held >= batch or not self.cache.of_sequence(1):
            return ""
        return f"holds {many(held)} sequence{'' if held == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A tensor parallel size that does not fit the model's shapes, and why, a line each."""

    tp: int
    reasons: tuple[str, ...]
    pad_fits: bool
    """Whether it fits once zero units fill up what it does not divide."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a link of the hardware can feed.

    `balance` is the FLOP per byte that keep device and link busy, `break_even` the tp up to which the
    arithmetic of large batches takes longer than the collectives.
    """

    name: Literal["inside a node", "across nodes"]
    bandwidth: float
    balance: float
    break_even: float


@dataclass(frozen=True, slots=True)
class Advice:
    """One sentence that a person can act on. `kind` says which gain it is about."""

    kind: Literal["fit", "weights", "cache", "speed", "choice"]
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to use a number of devices: `replicas` of tp ranks each, for `batch` sequences of the context.

    `sequences` is how many all replicas hold; where that is less than the batch, it runs in turns.
    """

    tp: int
    replicas: int
    idle: int
    """Devices left over."""
    fits: bool
    sequences: int
    tokens: int
    running: int
    """Sequences of the batch that run at a time, all replicas together."""
    step: float
    """Seconds of one decode step of a replica with its part of the batch."""
    tokens_per_second: float
    """Of all replicas together."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """All of a plan."""

    model: str
    spec: str
    headers: bool
    """Whether names, shapes and element types are the checkpoint's, or what the spec makes of the config."""
    parameters: int
    """Elements that some rank reads."""
    active_parameters: int
    """Elements that one token's pass multiplies with: input embedding left out, experts as far as used."""
    weight_bytes: int
    """Bytes of these parameters, each counted once."""
    hardware: Hardware
    assumptions: Assumptions
    sizes: tuple[SizePlan, ...]
    refused: tuple[Refused, ...]
    links: tuple[Link, ...]
    advice: tuple[Advice, ...]
    choices: tuple[Choice, ...] = ()
    """Best first; none unless a number of devices was given."""
    notes: tuple[str, ...] = ()
    """What the numbers leave out, in words."""

    def as_json(self) -> dict[str, Any]:
        """The report for machines, with what each step takes in all, and why it cannot run, if so."""
        report = asdict(self)
        for size, told in zip(self.sizes, report["sizes"], strict=True):
            for step, of_step in zip(size.steps, told["steps"], strict=True):
                of_step |= {"seconds": step.seconds, "why_not": size.why_not(step.batch)}
        return report
