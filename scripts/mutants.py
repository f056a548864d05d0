"""Specs with one thing changed: a tag, a part, a width, a bias rule or a reduce. Each has to be noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tpspec.errors import TpspecError
from tpspec.language.checks import complaints
from tpspec.language.expressions import ExpressionError, parse
from tpspec.language.schema import Part, Rule
from tpspec.language.spec import PlacedRule, Spec
from tpspec.resolution import Shared
from tpspec.resolve import resolve
from tpspec.runtime import rank_model
from tpspec.runtime.prove import Subject, prove
from tpspec.scope import ConfigScope

ROW_MODIFIERS = {"reduce_at": None, "reduce_with": None, "reduce_before": None}
CUT_MODIFIERS = {
    "interleaved": None, "blocks": None, "width": None, "norm": None, "gather": False, "gather_at": None,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A spec in which one rule is another. `kind` is tag, part, width, bias or reduce.

    `rule` is the name that the rule is for, and when, where there are several for it.
    """

    kind: str
    rule: str
    change: str
    spec: Spec


def mutants(subject: Subject) -> Iterator[Mutant]:
    """Every mutant of the rules that name a tensor of the subject's model."""
    rules_for = Counter(placed.template for placed in subject.spec.rules)
    first: dict[int, Shared] = {}
    scope = subject.resolution.scope()
    for item in subject.resolution.shared:
        if item.parameter in ("", "weight"):
            first.setdefault(id(item.placed), item)
    for placed in subject.spec.rules:
        if item := first.get(id(placed)):
            alone = rules_for[placed.template] == 1 or placed.rule.when is None
            name = placed.template if alone else f"{placed.template} when {placed.rule.when}"
            for kind, change, rule in changed(placed.rule, item, scope):
                yield Mutant(kind, name, change, with_rule(subject.spec, placed, rule))


def with_rule(spec: Spec, old: PlacedRule, new: Rule) -> Spec:
    """The spec with another rule in one place."""
    rules = tuple(replace(placed, rule=new) if placed is old else placed for placed in spec.rules)
    return replace(spec, rules=rules)


def changed(rule: Rule, item: Shared, scope: ConfigScope) -> Iterator[tuple[str, str, Rule]]:
    """What a rule could be mistaken for: kind, change in words, and the other rule."""
    yield from _other_tags(rule, item, scope)
    yield from _other_parts(rule, item, scope.spec)
    for i, width in enumerate(rule.width or ()):
        doubled = (*rule.width[:i], parse(f"2 * ({width})"), *rule.width[i + 1 :])
        yield "width", f"width {width} doubled", rule.model_copy(update={"width": doubled})
    if rule.bias is not None:
        yield (
            "bias",
            f"bias: {rule.bias}, negated",
            rule.model_copy(update={"bias": parse(f"not ({rule.bias})")}),
        )
    for name in ("reduce_at", "reduce_with", "reduce_before", "norm", "gather", "gather_at"):
        if getattr(rule, name):
            yield "reduce", f"without {name}", rule.model_copy(update={name: None})
    if rule.tag == "row" and not (rule.reduce_with or rule.reduce_at):
        before, layer, _ = item.placed.template.partition("{layer}")
        if layer:
            late = {"reduce_at": before + layer, "reduce_before": None}
            yield "reduce", "reduced after the layer", rule.model_copy(update=late)


def _other_tags(rule: Rule, item: Shared, scope: ConfigScope) -> Iterator[tuple[str, str, Rule]]:
    old = rule.tag
    clean: dict[str, Any] = {old.replace("-", "_"): None}
    whole = clean | CUT_MODIFIERS | ROW_MODIFIERS | {"replicated": True, "dims": None, "dim": None}
    if old in ("column", "qkv-head") and len(rule.parts) == 1:
        yield (
            "tag",
            f"{old} → row",
            rule.model_copy(
                update=clean | {"row": rule.parts, "norm": None, "gather": False, "gather_at": None}
            ),
        )
    if old == "row":
        yield "tag", "row → column", rule.model_copy(update=clean | ROW_MODIFIERS | {"column": rule.parts})
    if old == "vocab":
        yield "tag", "vocab → column", rule.model_copy(update=clean | {"column": rule.parts})
    if old in ("column", "qkv-head", "merged", "row", "vocab", "select", "once"):
        yield "tag", f"{old} → replicated", rule.model_copy(update=whole)
    if old == "replicated":
        yield "tag", "replicated → once", rule.model_copy(update={"replicated": None, "once": True})
        yield "tag", "replicated → unused", rule.model_copy(update={"replicated": None, "unused": True})
        yield from _cut_all_the_same(rule, item, scope)


def _cut_all_the_same(rule: Rule, item: Shared, scope: ConfigScope) -> Iterator[tuple[str, str, Rule]]:
    """What is whole on every rank, cut along the first axis that its first dimension could hold."""
    size = item.tensor.shape[0] if item.tensor and item.tensor.shape else 1
    for name in scope.spec.axes:
        try:
            units = scope.axis(name, item.binding).units
        except ExpressionError:  # an axis that this model has no unit of
            continue
        if 1 < units <= size and size % units == 0:
            part = Part(axis=name, width=parse(size // units))
            update = {"replicated": None, "column": (part,), "dims": None, "dim": 0}
            yield "tag", "replicated → column", rule.model_copy(update=update)
            return


def _other_parts(rule: Rule, item: Shared, spec: Spec) -> Iterator[tuple[str, str, Rule]]:
    if not rule.parts:
        return
    field = rule.tag.replace("-", "_")
    for i, part in enumerate(rule.parts):
        for axis in spec.axes if rule.tag != "vocab" else ():
            if axis != part.axis != "replicated":
                other = part.model_copy(update={"axis": axis})
                parts = (*rule.parts[:i], other, *rule.parts[i + 1 :])
                yield "part", f"part {i}: {part.axis} → {axis}", rule.model_copy(update={field: parts})
    if len(rule.parts) < 2:
        return
    if rule.interleaved:
        yield "part", "not interleaved", rule.model_copy(update={"interleaved": None})
    else:
        yield "part", "interleaved", rule.model_copy(update={"interleaved": rule.parts[0].axis})
    rotated = (*rule.parts[1:], rule.parts[0])
    if rotated != rule.parts:
        yield "part", "parts in another order", rule.model_copy(update={field: rotated})
    axis = next((part.axis for part in item.sharing.parts if part.axis), None)
    if axis and axis.name != rule.interleaved and item.sharing.size % axis.units == 0:
        plain = Part(axis=axis.name, width=parse(item.sharing.size // axis.units))
        update = {field: (plain,), "width": None, "interleaved": None, "blocks": None}
        yield "part", "fused parts cut as one", rule.model_copy(update=update)


def caught(subject: Subject, spec: Spec, sizes: tuple[int, ...] = (2, 4, 8)) -> str:
    """What gives a mutant away: its own checks, the checkpoint, or a proof; empty where nothing does."""
    faults = list(complaints(spec))
    if faults:
        return str(faults[0])
    stored = {item.tensor.name: item.tensor for item in subject.resolution.shared if item.tensor}
    with put(rank_model, "choose_spec", lambda *_: spec):
        try:
            resolution = resolve(spec, subject.resolution.config, stored)
            mutant = replace(subject, spec=spec, resolution=resolution)
            for tp in filter(subject.resolution.fits, sizes):
                if failure := prove(mutant, tp).failure:
                    return failure
        except TpspecError as error:
            return str(error)
    return ""


@contextmanager
def put(module: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Something else in the place of a module's function, for a while."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
