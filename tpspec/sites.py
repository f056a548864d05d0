"""Where the ranks meet: the collectives that a spec's tags imply, module by module.

One prediction for all: plans count it, and the runtime attaches it to a model's modules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tpspec.axes import held_units
from tpspec.language.patterns import compile_pattern
from tpspec.language.schema import Norm
from tpspec.language.spec import PlacedRule
from tpspec.layout import Cut
from tpspec.resolution import Resolution, Shared
from tpspec.scope import ConfigScope

Kind = Literal["reduce", "reduce_input", "hold", "embedding", "logits", "gather", "statistics", "once"]
COLLECTIVES: Mapping[Kind, str] = {
    "reduce": "all_reduce",
    "reduce_input": "all_reduce",
    "embedding": "all_reduce",
    "statistics": "all_reduce",
    "gather": "all_gather",
    "logits": "all_gather",
}
"""The collective that each kind of site runs once in a forward pass; the others run none."""
STATISTICS_BYTES = 4
"""Statistics are summed in float32; everything else has the model's own element type."""


@dataclass(frozen=True)
class Statistics:
    """A norm over a sharded width: `groups` of `size` elements, each element held `copies` times.

    `slots` gives for each rank the group of each of the equal parts that its width has, None where
    all of a part is padding.
    """

    norm: Norm
    groups: int
    size: int
    copies: int
    cut: Cut
    slots: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True)
class Site:
    """Something done at a module, which has the name that the spec gives it, or the model.

    `partner` is the sibling to which a partial sum that is held back is added, `cut` how the
    vocabulary, or what is gathered, is shared, `statistics` what a norm sums up, `runs` how often the
    module runs in a forward pass on text alone, `elements` how many a rank gives for one token.
    """

    kind: Kind
    module: str
    partner: str = ""
    cut: Cut | None = None
    statistics: Statistics | None = None
    runs: int = 1
    elements: int = 0
    placed: PlacedRule | None = None

    def payload(self, element: int) -> int:
        """Bytes that a rank gives for one token, where the model's elements have `element` bytes."""
        return self.elements * (STATISTICS_BYTES if self.kind == "statistics" else element)


def predicted(sites: Sequence[Site], *, text_alone: bool = True) -> Counter[str]:
    """How many collectives of each kind one forward pass runs: at each place one, each time that it runs.

    With other inputs than text, what text alone passes over runs once.
    """
    least = 0 if text_alone else 1
    places = {(site.kind, site.module): max(site.runs, least) for site in sites if site.kind in COLLECTIVES}
    counts: Counter[str] = Counter()
    for (kind, _), runs in places.items():
        counts[COLLECTIVES[kind]] += runs
    return counts


def implied_sites(resolution: Resolution, tp: int) -> list[Site]:
    """The sites that the rules of a checkpoint, or of a config, imply, each once, under the spec's names."""
    sites: dict[tuple[Kind, str], Site] = {}
    for site in _Sites(resolution, tp).all() if tp > 1 else ():
        sites.setdefault((site.kind, site.module), site)
    return list(sites.values())


class _Place(NamedTuple):
    """A rule at one binding of the ranges that its site's names have, and a tensor of it."""

    placed: PlacedRule
    binding: Mapping[str, int]
    item: Shared


class _Sites:
    def __init__(self, resolution: Resolution, tp: int) -> None:
        self.resolution = resolution
        self.scope: ConfigScope = resolution.scope(tp)
        self.tp = tp
        self.items: dict[int, list[Shared]] = defaultdict(list)
        for item in sorted(resolution.shared, key=_scales_last):
            self.items[id(item.placed)].append(item)

    def all(self) -> Iterator[Site]:
        for placed in self.resolution.spec.rules:
            if placed.rule.tag == "vocab":
                yield from self._vocabulary(placed)
            elif placed.rule.tag == "once":
                for binding in self.scope.bindings(placed.pattern.variables):
                    yield Site("once", placed.pattern.name(binding), placed=placed)
            elif self.items[id(placed)]:
                yield from self._at(placed)

    def _at(self, placed: PlacedRule) -> Iterator[Site]:
        rule = placed.rule
        if rule.tag == "row":
            for place in self._places(placed, rule.reduce_before or rule.reduce_at, rule.reduce_with):
                yield self._reduce(place)
        if rule.gather or rule.gather_at:
            for place in self._places(placed, rule.gather_at):
                cut = place.item.sharing.cut(self.tp)
                yield self._site("gather", place, rule.gather_at, cut=cut, elements=cut.length(0))
        if rule.norm:
            for place in self._places(placed):
                statistics = self._statistics(place)
                if statistics:
                    each = statistics.groups if rule.norm.kind == "rms" else 2
                    yield self._site("statistics", place, None, statistics=statistics, elements=each)

    def _places(self, placed: PlacedRule, *templates: str | None) -> Iterator[_Place]:
        """Each binding that makes another name, of the rule itself where no template is given."""
        named = [compile_pattern(template) for template in templates if template] or [placed.pattern]
        variables = dict.fromkeys(variable for pattern in named for variable in pattern.variables)
        condition = self.scope.free([placed.rule.when])
        tested = dict.fromkeys(v for v in placed.pattern.variables if v in variables or v in condition)
        items = _Index(self.items[id(placed)])
        seen = set()
        for binding in self.scope.bindings(tested):
            key = tuple(binding[variable] for variable in variables)
            holds = placed.rule.when is None or self.scope.evaluate(placed.rule.when, binding)
            if holds and key not in seen:
                seen.add(key)
                yield _Place(placed, binding, items.near(binding))

    def _site(
        self,
        kind: Kind,
        place: _Place,
        template: str | None,
        *,
        partner: str = "",
        cut: Cut | None = None,
        statistics: Statistics | None = None,
        elements: int = 0,
    ) -> Site:
        rule = place.placed.rule
        pattern = compile_pattern(template) if template else place.placed.pattern
        runs = 1 if rule.runs is None else int(self.scope.evaluate(rule.runs, place.binding))
        return Site(kind, pattern.name(place.binding), partner, cut, statistics, runs, elements, place.placed)

    def _reduce(self, place: _Place) -> Site:
        rule = place.placed.rule
        elements = self._width(place)
        if rule.reduce_before:
            return self._site("reduce_input", place, rule.reduce_before, elements=elements)
        if rule.reduce_with:
            partner = compile_pattern(rule.reduce_with).name(place.binding)
            return self._site("hold", place, rule.reduce_at, partner=partner, elements=elements)
        return self._site("reduce", place, rule.reduce_at, elements=elements)

    def _width(self, place: _Place) -> int:
        """Elements of a sum for one token: the matrix's output, or of a block the residual stream's."""
        rule, hidden = place.placed.rule, self.resolution.spec.hidden
        said = (rule.out if not rule.reduce_at else None) or hidden
        if said is not None:
            return self.scope.count(said, place.binding)
        tensor, cut = place.item.tensor, place.item.sharing
        return 0 if tensor is None else next(n for d, n in enumerate(tensor.shape) if d != cut.dim)

    def _statistics(self, place: _Place) -> Statistics | None:
        """What a norm over the sharded width sums up; None where each of its groups lies on one rank."""
        norm, sharing, tp = place.placed.rule.norm, place.item.sharing, self.tp
        assert norm is not None
        cut = sharing.cut(tp)
        groups = self.scope.axis(norm.groups, place.binding) if norm.groups else None
        if groups is None:
            copies = sharing.parts[0].axis.copies(tp) if sharing.parts[0].axis else 1
            return Statistics(norm, 1, sharing.size, copies, cut, ((0,),) * tp)
        slots = tuple(tuple(held_units(groups, tp, rank)) for rank in range(tp))
        size = sharing.size // groups.units
        if groups.copies(tp) == 1 and cut.length(0) == len(slots[0]) * size:
            return None
        return Statistics(norm, groups.units, size, 1, cut, slots)

    def _vocabulary(self, placed: PlacedRule) -> Iterator[Site]:
        """An embedding or a head; a tied head has no tensor of its own, but its module runs all the same."""
        rules = self.resolution.spec.rules
        owner = next((other for other in rules if other.template == placed.rule.tied_to), placed)
        items = self.items[id(placed)] or self.items[id(owner)]
        if not items:
            return
        head = placed.rule.head or placed.rule.tied_to is not None
        weight = next((item for item in items if item.parameter != "bias"), items[0])
        cut = weight.sharing.cut(self.tp)
        width = cut.length(0) if head else weight.tensor.shape[1] if weight.tensor else 0
        real = self.scope.axis(placed.rule.parts[0].axis).real
        if head and real is not None:
            cut = cut.first(real)
        place = _Place(placed, {}, weight)
        yield self._site("logits" if head else "embedding", place, None, cut=cut, elements=width)


def _scales_last(item: Shared) -> tuple[bool, int]:
    """A quantized weight is what is cut in the finest steps, and stands for its module."""
    return not item.sharing.parts, item.sharing.divisor


class _Index:
    """A rule's tensors by their bindings; all of them have the same ranges."""

    def __init__(self, items: Sequence[Shared]) -> None:
        self.first = items[0]
        self.ranges = tuple(items[0].binding)
        self.by_binding: dict[tuple[int, ...], Shared] = {}
        for item in items:
            if item.parameter != "bias":
                self.by_binding.setdefault(tuple(item.binding.values()), item)

    def near(self, binding: Mapping[str, int]) -> Shared:
        """The tensor at a binding, or, where the binding or the file leaves that open, the rule's first."""
        key = tuple(binding.get(name, -1) for name in self.ranges)
        return self.by_binding.get(key, self.first)
