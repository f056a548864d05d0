"""What can be wrong with a spec before any config is seen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from tpspec.errors import Finding
from tpspec.language.expressions import Expression
from tpspec.language.schema import Stack
from tpspec.language.spec import PlacedRule, Spec


def complaints(spec: Spec) -> Iterator[Finding]:
    """Everything that is wrong with a spec in itself."""
    if not spec.rules:
        yield Finding("modules", "a spec has at least one rule", spec.where)
    for placed in spec.rules:
        yield from _unknown_names(spec, placed)
        yield from _unpaired(spec, placed)
    yield from _unknown_axes(spec)
    yield from _too_early(spec)
    yield from _circles(spec)


def _unknown_names(spec: Spec, placed: PlacedRule) -> Iterator[Finding]:
    rule = placed.rule
    axes = [part.axis for part in rule.parts if part.axis != "replicated"]
    axes += filter(None, (rule.interleaved, rule.select, rule.norm.groups if rule.norm else None))
    named: list[tuple[str, str, Collection[str]]] = [("axis", name, spec.axes) for name in axes]
    named += [("range", name, spec.ranges) for name in placed.pattern.variables]
    if rule.tied_to:
        named.append(("module", rule.tied_to, [other.template for other in spec.rules]))
    for kind, name, known in named:
        if name not in known:
            yield _unknown(kind, name, known, placed.template, placed.place)
    widths = rule.width or (None,)
    for i, part in enumerate(rule.parts):
        if part.axis == "replicated" and part.width is None and widths[min(i, len(widths) - 1)] is None:
            yield Finding(placed.template, "a replicated part needs its width", placed.place)


def _unknown_axes(spec: Spec) -> Iterator[Finding]:
    named = [(f"axes.{name}", axis.groups) for name, axis in spec.axes.items() if axis.groups]
    templates = {placed.template for placed in spec.rules}
    for section, cuts in (("slice", spec.runtime.slice), ("buffers", spec.runtime.buffers)):
        for key, cut in cuts.items():
            if cut.axis:
                named.append((f"runtime.{section}.{key}", cut.axis))
            elif cut.like not in templates:
                yield _unknown("module", cut.like or "", templates, f"runtime.{section}.{key}", spec.where)
    for subject, expression in _outside_rules(spec):
        named += [(subject, axis) for axis in expression.axes]
    for subject, axis in named:
        if axis not in spec.axes:
            yield _unknown("axis", axis, spec.axes, subject, spec.where)
    for name in spec.active:
        if name not in spec.ranges:
            yield _unknown("range", name, spec.ranges, "active", spec.where)
    for entry in spec.memory:
        if isinstance(entry, Stack) and entry.over and entry.over not in spec.ranges:
            yield _unknown("range", entry.over, spec.ranges, f"memory {entry.into}", spec.where)


def _too_early(spec: Spec) -> Iterator[Finding]:
    """Sizes are there before tp is known, and ranges before any layer is."""
    sized = [("let", name, expression) for name, expression in spec.definitions.items()]
    sized += [("axes", name, e) for name, axis in spec.axes.items() for e in (axis.units, axis.width) if e]
    sized += [("ranges", name, e) for name, bounds in spec.ranges.items() for e in bounds]
    placed = [(section, f"{section}.{name}", e, spec.place(section, name)) for section, name, e in sized]
    placed += [("rule", rule.template, e, rule.place) for rule in spec.rules for e in rule.expressions]
    for section, subject, expression, place in placed:
        if expression.axes:
            yield Finding(subject, "local() is for `cache` and `runtime`: no tp is known here", place)
        if section == "ranges" and not spec.ranges.keys().isdisjoint(expression.names):
            yield Finding(subject, "a range cannot depend on a range", place)


def _outside_rules(spec: Spec) -> Iterator[tuple[str, Expression]]:
    for entry in spec.cache:
        for expression in (entry.when, entry.per_token, entry.per_sequence, entry.window):
            if expression:
                yield "cache", expression
    for key, expression in spec.runtime.config.items():
        yield f"runtime.config.{key}", expression
    for module, attributes in spec.runtime.attributes.items():
        for key, expression in attributes.items():
            yield f"runtime.attributes.{module}.{key}", expression


def _unknown(kind: str, name: str, known: Collection[str], subject: str, place: str) -> Finding:
    close = get_close_matches(name, known, n=1)
    remedy = f"did you mean '{close[0]}'?" if close else ""
    return Finding(
        subject, f"there is no {kind} '{name}'; there are {', '.join(sorted(known))}", place, remedy
    )


def _circles(spec: Spec) -> Iterator[Finding]:
    """A definition may read the config's value of its own name, but not itself through others."""

    def reaches(name: str, goal: str, seen: set[str]) -> bool:
        for used in spec.definitions[name].names & spec.definitions.keys() - {name}:
            if used == goal:
                return True
            if used not in seen:
                seen.add(used)
                if reaches(used, goal, seen):
                    return True
        return False

    for section, names in (("let", spec.let), ("per_layer", spec.per_layer)):
        for name in names:
            if reaches(name, name, set()):
                yield Finding(f"{section}.{name}", "is defined by itself", spec.place(section, name))


def _unpaired(spec: Spec, placed: PlacedRule) -> Iterator[Finding]:
    """The pairing law: what a row-parallel matrix consumes was produced in shares of the same axis."""
    if placed.rule.tag != "row":
        return
    axis, variables = placed.rule.parts[0].axis, set(placed.pattern.variables)
    for other in spec.rules:
        produces = other.rule.tag != "row" and any(part.axis == axis for part in other.rule.parts)
        if produces and set(other.pattern.variables) <= variables:
            return
    block = placed.template.rpartition(".")[0]
    beside = [
        f"{other.template.rpartition('.')[2]} is {other.rule.described()}"
        for other in spec.rules
        if other is not placed and other.template.rpartition(".")[0] == block
    ]
    problem = f"is cut along '{axis}', which nothing in its layer produces in shares"
    around = f" ({', '.join(beside)})" if beside else ""
    remedy = f"cut what feeds it along '{axis}' as well, or replicate both"
    yield Finding(placed.template, problem + around, placed.place, remedy)
