"""A spec beside a tensor-parallel plan of transformers: where they differ, and what the plan's way costs.

A plan names modules relative to the model without its head (`layers.*.self_attn.q_proj`) and gives each a
style; what it does not name is whole on every rank. Costs follow from the two cuts of the same tensor.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tpspec.axes import Axis
from tpspec.cuts import Extent, cut
from tpspec.dimensions import named
from tpspec.dtypes import nbytes
from tpspec.errors import Finding, TpspecError
from tpspec.faults import where_bound
from tpspec.language.schema import Prefix
from tpspec.language.spec import PlacedRule
from tpspec.layout import Cut, TensorLayout, whole
from tpspec.memory import Memory
from tpspec.plan_styles import STYLES, WHOLE, Style
from tpspec.planning.weights import inventory
from tpspec.resolution import Resolution, Shared
from tpspec.sharing import Sharing
from tpspec.sites import COLLECTIVES, implied_sites

Plan = Mapping[str, str]
"""Pattern → style."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Modules of one rule that the plan treats otherwise than the spec does.

    `rank_bytes`: what the plan keeps on the fullest rank beyond what the spec does, of all `count` tensors;
    less where negative. `token_bytes`: what it gathers or sums up, beyond the spec, for each token of a pass.
    """

    module: str
    count: int
    ours: str
    theirs: str
    says: str
    place: str
    rank_bytes: int = 0
    token_bytes: int = 0


@dataclass(frozen=True)
class PlanDiff:
    """The comparison at one tp. `alike` modules are treated alike; `unmatched` patterns name no module."""

    tp: int
    spec: str
    differences: tuple[Difference, ...]
    alike: int
    unmatched: tuple[str, ...]
    rank_bytes: int
    """What the spec keeps on the fullest rank, in bytes."""

    @property
    def more_per_rank(self) -> int:
        return sum(difference.rank_bytes for difference in self.differences)

    @property
    def more_per_token(self) -> int:
        return sum(difference.token_bytes for difference in self.differences)


def diff_plan(resolution: Resolution, plan: Plan, tp: int) -> PlanDiff:
    """Compares a spec, resolved for a model, with a plan.

    Raises TpspecError where tp does not fit the spec, or where the plan has a style that is not known.
    """
    resolution.check(tp)
    unknown = [
        Finding(name, f"has the style '{style}'") for name, style in plan.items() if style not in STYLES
    ]
    if unknown:
        raise TpspecError("the plan has styles that are not known", unknown, f"known: {', '.join(STYLES)}")
    names = _Names(resolution)
    groups: dict[tuple[PlacedRule, Prefix, str, Sharing, str | None], list[Shared]] = defaultdict(list)
    used: set[str] = set()
    for item in (*resolution.shared, *_tied_heads(resolution)):
        if item.sharing.apart or item.tensor is None or item.parameter == "bias":
            continue
        pattern = names.pattern(plan, item)
        used |= {pattern} if pattern else set()
        groups[item.placed, item.prefix, item.parameter, item.sharing, pattern].append(item)
    parameters = dict.fromkeys((placed, prefix, parameter) for placed, prefix, parameter, *_ in groups)
    several = Counter((placed, prefix) for placed, prefix, _ in parameters)
    saved = _all_reduced(resolution, tp)
    stored = {item.placed for item in resolution.shared}
    differences: list[Difference] = []
    alike = 0
    for (placed, prefix, parameter, sharing, pattern), items in groups.items():
        module = prefix.put(where_bound(placed.pattern, [i.binding for i in items], resolution.ranges))
        module = named(module, parameter) if several[placed, prefix] > 1 else module
        style = pattern and plan[pattern]
        alone, tied = names.alone(items[0]), placed not in stored
        compared = _Compared(items, sharing.cut(tp), style, tp, alone=alone, tied=tied)
        found = list(compared.differences(module, placed, saved))
        if any(difference.token_bytes < 0 for difference in found):
            saved[placed] = 0  # once for a module, however many tensors it is stored as
        differences += found
        alike += 0 if found else compared.count
    others = tuple(name for name in plan if name not in used and STYLES[plan[name]] != WHOLE)
    most = max(inventory(resolution).at(tp).weights().ranks)
    return PlanDiff(tp, resolution.spec.name, tuple(differences), alike, others, most)


def _all_reduced(resolution: Resolution, tp: int) -> dict[PlacedRule, int]:
    """Elements that each rule's modules sum up over the ranks for one token."""
    elements: Counter[PlacedRule] = Counter()
    for site in implied_sites(resolution, tp):
        if site.placed and COLLECTIVES.get(site.kind) == "all_reduce":
            elements[site.placed] += site.elements * site.runs
    return elements


def _tied_heads(resolution: Resolution) -> Iterator[Shared]:
    """Heads that have no tensor of their own, as the embeddings that they are tied to."""
    stored = {item.placed.template: item for item in resolution.shared}
    for placed in resolution.spec.rules:
        tied = stored.get(placed.rule.tied_to or "")
        if tied and placed.template not in stored:
            yield replace(tied, placed=placed)


class _Names:
    """What the model calls the tensors of a spec, numbers replaced by `*` as plans write them."""

    def __init__(self, resolution: Resolution) -> None:
        self.memory = Memory(resolution.spec)

    def pattern(self, plan: Plan, item: Shared) -> str | None:
        """The plan's pattern for a tensor or its module: the longest that one of its names ends in."""
        names = {_numberless(name) for name in self._of(item)}
        fitting = [p for p in plan if any(name == p or name.endswith(f".{p}") for name in names)]
        return max(fitting, key=len, default=None)

    def alone(self, item: Shared) -> bool:
        """Whether the model holds the tensor by itself, not side by side with others in one parameter."""
        return all(self.memory.member(name) is None for name in _stored_names(item))

    def _of(self, item: Shared) -> Iterator[str]:
        for stored in _stored_names(item):
            member = self.memory.member(stored)
            if member:
                yield member.into
            for part in self.memory.parts(stored):
                yield self.memory.renamed(part).removesuffix(".weight")


def _stored_names(item: Shared) -> tuple[str, str]:
    """A name of a module's weight, or of a bare parameter; any layer's, where all are alike."""
    pattern = item.placed.pattern
    name = pattern.name(dict.fromkeys(pattern.variables, 0) | dict(item.binding)).removesuffix(".**")
    return f"{name}.weight", name


def _numberless(name: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


class _Compared:
    """Tensors that one rule shares one way, and the style that the plan gives them."""

    def __init__(
        self, items: Sequence[Shared], ours: Cut, named: str | None, tp: int, *, alone: bool, tied: bool
    ) -> None:
        assert items[0].tensor is not None
        self.tensor = items[0].tensor
        self.count = sum(item.count for item in items)
        self.named = named or "not in the plan"
        style = STYLES[named] if named else WHOLE
        self.style = style if alone else replace(style, parts=1)  # side by side, each is a part by itself
        self.tp = tp
        self.cut = ours
        self.theirs, self.uneven = _cut(self.style, self.tensor.shape, tp)
        self.more = 0 if tied else self._most(self.theirs) - self._most(ours)

    def differences(
        self, module: str, placed: PlacedRule, all_reduced: Mapping[PlacedRule, int]
    ) -> Iterator[Difference]:
        """Every way in which the plan differs, each with its cost; whole matrices need no all-reduce."""
        rule = placed.rule

        def said(text: str, rank_bytes: int = 0, token_bytes: int = 0) -> Difference:
            ours = rule.described()
            return Difference(
                module, self.count, ours, self.named, text, placed.place, rank_bytes, token_bytes
            )

        if self.cut.dim is not None and self.theirs.dim is None:
            if not self.uneven:
                sums = nbytes(self.tensor.dtype, (all_reduced.get(placed, 0),))
                yield said("whole on every rank", self.more, -sums)
        elif self.theirs.dim is not None and self.cut.dim != self.theirs.dim:
            other = "cut the other way: what it reads and gives differs"
            yield said("cut here, whole in the spec" if self.cut.dim is None else other, self.more)
        elif self.cut.dim is None and self.theirs.shares != self.cut.shares:
            yield said("whole on every rank, where the spec has it counted once")
        elif self.theirs.shares != self.cut.shares and not self.style.gathers:
            yield said(*self._otherwise())
        if self.uneven:
            yield said(f"a plain cut does not divide: {self.uneven}")
        gathered = self.style.gathers and not rule.gather
        if gathered:
            what = "the logits are gathered" if rule.tag == "vocab" else "the output is gathered"
            yield said(f"{what} on every rank", token_bytes=self._output())
        if self.style.reduces and rule.reduce_with:
            sibling = rule.reduce_with.rpartition("}.")[2]
            yield said(f"an all-reduce of its own, not one with {sibling}", token_bytes=self._output())

    def _otherwise(self) -> tuple[str, int]:
        """How two cuts of the same dimension differ, and what the plan's keeps more of."""
        rank = next(r for r in range(self.tp) if self.cut.shares[r] != self.theirs.shares[r])
        mine, plan = (_shown(c, rank) for c in (self.cut, self.theirs))
        copied = any(count > 1 for _, _, count in self.cut.copies())
        why = "a plain cut splits heads" if copied else "a plain cut goes through fused parts"
        return f"{why}: rank {rank} gets {plan}, not {mine}", self.more

    def _most(self, cut: Cut) -> int:
        tensor = TensorLayout(self.tensor.name, self.tensor.dtype, self.tensor.shape, cut)
        return self.count * max(tensor.local_bytes(rank) for rank in range(self.tp))

    def _output(self) -> int:
        """Bytes of the output of all these modules for one token, whole."""
        shape = self.tensor.shape
        embeds = self.style.dim == -1 and not self.style.reduces
        features = shape[-1] if embeds or len(shape) == 1 else shape[-2]
        return self.count * nbytes(self.tensor.dtype, (features,))


def _cut(style: Style, shape: Sequence[int], tp: int) -> tuple[Cut, str]:
    """A style's cut of a tensor, and the division that leaves a remainder where there is one."""
    if style.dim is None or not shape:
        return whole(tp), ""
    dim = max(len(shape) + style.dim, 0)
    axis = Axis("plain", shape[dim] // style.parts)
    numbers = axis.misfit(tp)
    if numbers:
        return whole(tp), numbers
    return cut(dim, [Extent(axis, 1)] * style.parts, tp), ""


def _shown(cut: Cut, rank: int) -> str:
    return " ".join(
        f"{length} zeros" if source is None else f"{source}:{source + length}"
        for source, length in cut.shares[rank] or ()
    )


def as_json(diff: PlanDiff) -> dict[str, Any]:
    """The comparison for machines."""
    return {**asdict(diff), "more_per_rank": diff.more_per_rank, "more_per_token": diff.more_per_token}
