"""What ranks hold of the weights, and what a step reads of them: counted from the cuts themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from tpspec.axes import Axis
from tpspec.dtypes import nbytes
from tpspec.faults import where_bound
from tpspec.language.expressions import ExpressionError
from tpspec.language.spec import PlacedRule
from tpspec.layout import TensorLayout
from tpspec.planning.formulas import distinct_experts
from tpspec.planning.report import Weights
from tpspec.resolution import Resolution, Shared
from tpspec.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Experts:
    """How many there are of something of which a token uses some."""

    number: int
    used: int

    def read(self, tokens: float) -> float:
        """The part of them that a pass over so many tokens reads."""
        return distinct_experts(self.number, self.used, tokens) / self.number


@dataclass(frozen=True, slots=True)
class Kind:
    """Tensors that look alike and are used alike.

    `looked_up`: of an input embedding a pass reads but a row for each token. `experts` is None where
    a pass reads all.
    """

    dtype: str
    shape: tuple[int, ...]
    sharing: Sharing
    looked_up: bool = False
    experts: Experts | None = None

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, self.shape)

    def at(self, tp: int) -> TensorLayout:
        """One of the tensors, cut."""
        return TensorLayout("", self.dtype, self.shape, self.sharing.cut(tp))

    def read(self, tokens: float) -> float:
        """The part of them that a pass over so many tokens reads and multiplies with."""
        return 0.0 if self.looked_up else self.experts.read(tokens) if self.experts else 1.0


@dataclass(frozen=True)
class Inventory:
    """All tensors that ranks read, by kind, and how many there are of each."""

    kinds: Mapping[Kind, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all, each counted once."""
        return sum(kind.nbytes * count for kind, count in self.kinds.items())

    @property
    def dtypes(self) -> dict[str, int]:
        """Bytes by element type, the most first."""
        found: Counter[str] = Counter()
        for kind, count in self.kinds.items():
            found[kind.dtype] += kind.nbytes * count
        return dict(found.most_common())

    @property
    def parameters(self) -> int:
        """Elements of all, as stored."""
        return sum(prod(kind.shape) * count for kind, count in self.kinds.items())

    @property
    def active(self) -> float:
        """Elements that one token is multiplied with."""
        return sum(prod(kind.shape) * count * kind.read(1) for kind, count in self.kinds.items())

    def at(self, tp: int) -> Pieces:
        """The pieces of all of them at one tp."""
        return Pieces(self.nbytes / tp, tuple((kind, kind.at(tp), n) for kind, n in self.kinds.items()))


@dataclass(frozen=True)
class Pieces:
    """Every kind of tensor as one tp cuts it, and how many there are of it; `simple` is total/tp bytes."""

    simple: float
    pieces: tuple[tuple[Kind, TensorLayout, int], ...]

    @property
    def tp(self) -> int:
        return self.pieces[0][1].cut.tp

    def weights(self) -> Weights:
        """What ranks hold."""
        ranks = [sum(t.local_bytes(rank) * n for _, t, n in self.pieces) for rank in range(self.tp)]
        parts: Counter[str] = Counter()
        for _, tensor, count in self.pieces:
            for name, size in _parts(tensor):
                parts[name] += size * count
        alone, copied, replicated, zeros = (
            parts[name] / self.tp for name in ("alone", "copied", "replicated", "zeros")
        )
        return Weights(tuple(ranks), self.simple, alone, copied, replicated, zeros)

    def read(self, tokens: float) -> float:
        """Bytes of weights that a rank reads in a pass over so many tokens: the rank that reads most."""
        return max(
            sum(t.local_bytes(rank) * n * kind.read(tokens) for kind, t, n in self.pieces)
            for rank in (0, self.tp - 1)
        )

    def multiplied(self) -> float:
        """Elements that a rank multiplies one token with: the rank that has most."""
        return max(
            sum(prod(t.local_shape(rank)) * n * kind.read(1) for kind, t, n in self.pieces)
            for rank in (0, self.tp - 1)
        )


def inventory(resolution: Resolution) -> Inventory:
    """The tensors of a checkpoint, or those that the spec makes of a config."""
    tied, experts_of = _tied(resolution), _ExpertsOf(resolution)
    kinds: Counter[Kind] = Counter()
    for item in resolution.shared:
        if item.tensor is None or item.sharing.apart:
            continue
        template = item.placed.template
        looked_up = item.placed.rule.tag == "vocab" and not _is_head(item) and template not in tied
        experts = experts_of.of(item.placed)
        kinds[Kind(item.tensor.dtype, item.tensor.shape, item.sharing, looked_up, experts)] += item.count
    return Inventory(kinds)


def unsaid(resolution: Resolution) -> list[str]:
    """Modules whose shapes the spec cannot say from the config alone, and that are therefore left out."""
    return [
        where_bound(item.placed.pattern, [item.binding], resolution.ranges)
        for item in resolution.shared
        if item.tensor is None and item.count and not item.sharing.apart
    ]


def left_out(resolution: Resolution) -> list[str]:
    """Modules that a checkpoint may have, and that a config alone does not count."""
    found: defaultdict[PlacedRule, list[Mapping[str, int]]] = defaultdict(list)
    for item in resolution.shared:
        if not (item.count or item.sharing.apart or item.placed.rule.tag == "once"):
            found[item.placed].append(item.binding)
    return sorted(
        where_bound(placed.pattern, bindings, resolution.ranges) for placed, bindings in found.items()
    )


def axes(resolution: Resolution) -> tuple[Axis, ...]:
    """The axes along which something is cut."""
    return tuple(dict.fromkeys(axis for item in resolution.shared for axis in item.sharing.axes))


def _is_head(item: Shared) -> bool:
    rule = item.placed.rule
    return rule.head or rule.tied_to is not None


def _tied(resolution: Resolution) -> set[str]:
    """Embeddings that serve as the head too."""
    stored = {item.placed.template for item in resolution.shared if item.tensor and item.parameter != "bias"}
    return {
        placed.rule.tied_to
        for placed in resolution.spec.rules
        if placed.rule.tied_to and placed.template not in stored
    }


class _ExpertsOf:
    """Which rules' tensors belong to one of many experts."""

    def __init__(self, resolution: Resolution) -> None:
        scope = resolution.scope()
        self.bounds = resolution.spec.ranges
        self.ranges: dict[str, Experts] = {}
        for name, used in resolution.spec.active.items():
            with suppress(ExpressionError):  # a config that does not say how many reads them all
                self.ranges[name] = Experts(len(resolution.ranges[name]), scope.count(used))

    def of(self, placed: PlacedRule) -> Experts | None:
        names = {*placed.pattern.variables, *(placed.rule.dims or ()), *self._in_blocks(placed)}
        return next((self.ranges[name] for name in names & self.ranges.keys()), None)

    def _in_blocks(self, placed: PlacedRule) -> list[str]:
        """The ranges whose members a matrix holds as its blocks, one after another (DBRX)."""
        blocks = placed.rule.blocks
        return [name for name, bounds in self.bounds.items() if len(bounds) == 1 and bounds[0] == blocks]


def _parts(tensor: TensorLayout) -> Iterator[tuple[str, int]]:
    """All ranks' bytes of a tensor together, by who else holds them."""
    cut, (outer, _, inner) = tensor.cut, tensor.fold()
    unit = outer * inner
    for start, stop, holders in cut.copies():
        shared = "replicated" if cut.dim is None and holders == cut.tp else "copied"
        yield ("alone" if holders == 1 else shared), (stop - start) * unit * holders
    yield "zeros", sum(cut.zeros(rank) for rank in range(cut.tp)) * unit
