"""Where the ranks meet: the collectives that a spec's tags imply, module by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tpspec.axes import held_units
from tpspec.errors import Finding, TpspecError
from tpspec.language.patterns import compile_pattern
from tpspec.language.schema import Norm
from tpspec.language.spec import PlacedRule
from tpspec.layout import Cut
from tpspec.resolution import Resolution, Shared
from tpspec.runtime.memory_names import MemoryNames
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
    """Something done at a module.

    `partner` is the sibling to which a partial sum that is held back is added, `cut` how the
    vocabulary, or what is gathered, is shared, `statistics` what a norm sums up, `runs` how often the
    module runs in a forward pass on text alone.
    """

    kind: Kind
    module: str
    partner: str = ""
    cut: Cut | None = None
    statistics: Statistics | None = None
    runs: int = 1


def find_sites(resolution: Resolution, names: MemoryNames, tp: int) -> list[Site]:
    """The sites of a model. Raises TpspecError for a rule whose module the model does not have."""
    if tp == 1:
        return []
    scope = resolution.scope(tp)
    sites: dict[tuple[Kind, str], Site] = {}
    for item in _modules(resolution):
        runs = _runs(item.placed, item.binding, scope)
        for site in _sites_of(item, names, scope):
            sites.setdefault((site.kind, site.module), replace(site, runs=runs))
    for site in _repeated(list(sites.values()), names):
        sites.setdefault((site.kind, site.module), site)
    for site in (*_counted_once(scope, names), *_vocabulary(resolution, names, scope)):
        sites.setdefault((site.kind, site.module), site)
    return list(sites.values())


def predicted(sites: list[Site], *, text_alone: bool = True) -> Counter[str]:
    """How many collectives of each kind one forward pass runs: at each place one, each time that it runs.

    With other inputs than text, what text alone passes over runs once.
    """
    least = 0 if text_alone else 1
    places = {(site.kind, site.module): max(site.runs, least) for site in sites if site.kind in COLLECTIVES}
    counts: Counter[str] = Counter()
    for (kind, _), runs in places.items():
        counts[COLLECTIVES[kind]] += runs
    return counts


def _modules(resolution: Resolution) -> Iterator[Shared]:
    """Each module or bare parameter once, whatever tensors it is stored as."""
    seen = set()
    for item in resolution.shared:
        key = (id(item.placed), tuple(item.binding.values()))
        if key not in seen:
            seen.add(key)
            yield item


def _sites_of(item: Shared, names: MemoryNames, scope: ConfigScope) -> Iterator[Site]:
    rule, placed = item.placed.rule, item.placed
    if rule.tag == "row":
        yield from _reduce(item, names)
    if rule.gather or rule.gather_at:
        module = _module(placed, rule.gather_at or placed.template, item.binding, names)
        assert scope.tp is not None
        yield Site("gather", module, cut=item.sharing.cut(scope.tp))
    if rule.norm:
        statistics = _statistics(item, scope)
        if statistics:
            # A bare parameter (a norm's `scale`) is the norm's own; the module around it is what runs.
            template = placed.template if item.parameter else placed.template.rpartition(".")[0]
            module = _module(placed, template, item.binding, names)
            yield Site("statistics", module, statistics=statistics)


def _repeated(sites: list[Site], names: MemoryNames) -> Iterator[Site]:
    """The sites again of modules whose weights other modules share (a block that several layers run)."""
    shared = {target.rpartition(".")[0]: source.rpartition(".")[0] for target, source in names.tied.items()}
    for module, owner in shared.items():
        for site in sites:
            if site.module == owner:
                yield replace(site, module=module)


def _runs(placed: PlacedRule, binding: Mapping[str, int], scope: ConfigScope) -> int:
    """How often a module runs in a forward pass."""
    return 1 if placed.rule.runs is None else int(scope.evaluate(placed.rule.runs, binding))


def _statistics(item: Shared, scope: ConfigScope) -> Statistics | None:
    """What a norm over the sharded width sums up; None where each of its groups lies on one rank."""
    norm, sharing, tp = item.placed.rule.norm, item.sharing, scope.tp
    assert norm is not None
    assert tp is not None
    cut, groups = sharing.cut(tp), scope.axis(norm.groups, item.binding) if norm.groups else None
    if groups is None:
        copies = sharing.parts[0].axis.copies(tp) if sharing.parts[0].axis else 1
        return Statistics(norm, 1, sharing.size, copies, cut, ((0,),) * tp)
    slots = tuple(tuple(held_units(groups, tp, rank)) for rank in range(tp))
    size = sharing.size // groups.units
    if groups.copies(tp) == 1 and cut.length(0) == len(slots[0]) * size:
        return None
    return Statistics(norm, groups.units, size, 1, cut, slots)


def _counted_once(scope: ConfigScope, names: MemoryNames) -> Iterator[Site]:
    """Modules without weights whose output all ranks compute alike, and a later sum must count once."""
    for placed in scope.spec.rules:
        if placed.rule.tag == "once":
            for binding in scope.bindings(placed.pattern.variables):
                module = names.module(placed.pattern.name(binding))
                if module is not None:
                    yield Site("once", module)


def _reduce(item: Shared, names: MemoryNames) -> Iterator[Site]:
    placed, rule = item.placed, item.placed.rule
    if rule.reduce_before:
        yield Site("reduce_input", _module(placed, rule.reduce_before, item.binding, names))
        return
    module = _module(placed, rule.reduce_at or placed.template, item.binding, names)
    if rule.reduce_with:
        yield Site("hold", module, partner=_module(placed, rule.reduce_with, item.binding, names))
    else:
        yield Site("reduce", module)


def _module(placed: PlacedRule, template: str, binding: Mapping[str, int], names: MemoryNames) -> str:
    name = compile_pattern(template).name(binding)
    module = names.module(name)
    if module is None:
        problem = f"the model has no module {name} to run its collective at"
        remedy = "stacked experts have none of their own: say reduce_at: the block that holds them"
        raise TpspecError(
            f"{placed.place}: the rule cannot run", [Finding(placed.template, problem, placed.place, remedy)]
        )
    return module


def _vocabulary(resolution: Resolution, names: MemoryNames, scope: ConfigScope) -> Iterator[Site]:
    """Embeddings and heads; a tied head has no tensor of its own, but its module runs all the same."""
    stored = {item.placed.template: item for item in resolution.shared if item.placed.rule.tag == "vocab"}
    for placed in resolution.spec.rules:
        if placed.rule.tag != "vocab":
            continue
        item = stored.get(placed.template) or stored.get(placed.rule.tied_to or "")
        module = names.module(placed.template)
        if item is None or module is None:
            continue
        kind: Kind = "embedding" if hasattr(names.modules[module], "num_embeddings") else "logits"
        assert scope.tp is not None
        runs = _runs(placed, item.binding, scope)
        yield Site(kind, module, cut=item.sharing.cut(scope.tp), runs=runs)
