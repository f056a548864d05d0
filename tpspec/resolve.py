"""Spec + config + headers → how every tensor is shared, and from there the Layout for a tp.

Findings come in two stages. What does not depend on tp (names, shapes, absent tensors) is found
once; which tensors a tp does not divide is found for each tp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from tpspec.absences import Absences
from tpspec.cache import cache_dtype
from tpspec.checkpoint import Checkpoint, StoredTensor
from tpspec.config import model_types
from tpspec.dtypes import STORED_AS
from tpspec.faults import Faults
from tpspec.language import registry
from tpspec.language.expressions import ExpressionError
from tpspec.language.patterns import compile_pattern
from tpspec.language.schema import Rule
from tpspec.language.spec import PlacedRule, Spec
from tpspec.language.tags import NO_RANK
from tpspec.layout import Layout
from tpspec.matching import Match, Matcher
from tpspec.padding import Order, decide
from tpspec.pairing import suspicious_vectors
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution, Shared
from tpspec.rules import RuleError, Rules
from tpspec.scope import ConfigScope
from tpspec.shapes import declared, parameters, stored_dtype, stored_shape
from tpspec.sharing import Sharing


def resolve_layout(
    checkpoint: Checkpoint, tp: int, spec_file: Path | None = None, pad: Order | None = None
) -> Layout:
    """The Layout of a checkpoint for a tp. Raises TpspecError with every finding."""
    return resolve_checked(checkpoint, tp, spec_file, pad).layout(tp)


def resolve_checked(
    checkpoint: Checkpoint,
    tp: int,
    spec_file: Path | None = None,
    pad: Order | None = None,
    align: int = 1,
) -> Resolution:
    """A checkpoint's resolution, in which a tp fits. Raises TpspecError with every finding."""
    spec = choose_spec(checkpoint.config, spec_file)
    return resolve_fitting(spec, checkpoint.config, checkpoint.tensors, tp, pad, align)


def resolve_fitting(
    spec: Spec,
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor] | None,
    tp: int,
    pad: Order | None = None,
    align: int = 1,
) -> Resolution:
    """As `resolve`, for a tp that has to fit, padded only where it would not without.

    Raises TpspecError with every finding, the sizes that work, and whether padding would help.
    """
    resolution = resolve(spec, config, tensors, pad, align)
    if resolution.findings or resolution.fits(tp):
        resolution.check(tp)
        return resolution
    if pad:
        plain = resolve(spec, config, tensors)
        if not plain.fits(tp):
            resolution.check(tp, valid=plain.valid_tp)
        return plain
    resolution.check(tp, or_pad=resolve(spec, config, tensors, "kv").fits(tp))
    return resolution


def choose_spec(config: Mapping[str, Any], spec_file: Path | None = None) -> Spec:
    """The user's spec file where one is given, else the spec of the config's model type."""
    if spec_file:
        return registry.spec_from_file(spec_file)
    return registry.spec_for(model_types(dict(config)))


def resolve(
    spec: Spec,
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor] | None = None,
    pad: Order | None = None,
    align: int = 1,
) -> Resolution:
    """Matches a checkpoint's tensors with a spec, both ways; without tensors, reads the config alone.

    With `pad`, zero units fill up what a tp does not divide, in that order of cost; columns of an MLP
    to `align` of them per rank.
    Raises TpspecError where the config itself cannot be used.
    """
    scope = ConfigScope(spec, config)
    quantization = detect_format(scope.config)
    rules = Rules(scope, quantization)
    ranges = {name: scope.range(name) for name in spec.ranges}
    if pad:
        seen: set[Sharing] = set()
        if tensors and quantization.document:
            unpadded = _Resolver(spec, scope, rules, Faults(ranges))
            seen = {item.sharing for item in unpadded.from_tensors(tensors)[0]}
        scope = ConfigScope(spec, config, pad=decide(rules, pad, align, seen))
        rules = Rules(scope, quantization)
    faults = Faults(ranges)
    _check_groups(scope, faults)
    resolver = _Resolver(spec, scope, rules, faults)
    if tensors is None:
        items = tuple(resolver.from_config())
        return Resolution(spec, scope.config, items, ranges, tuple(faults.findings()), pad=scope.pad)
    shared, ignored = resolver.from_tensors(tensors)
    return Resolution(spec, scope.config, shared, ranges, tuple(faults.findings()), ignored, scope.pad)


def _check_groups(scope: ConfigScope, faults: Faults) -> None:
    """Units of an axis that groups another must share it out evenly (query heads per KV head)."""
    for name, axis in scope.spec.axes.items():
        if axis.groups is None:
            continue
        place = scope.spec.place("axes", name)
        free = scope.free_of_axis(name) | scope.free_of_axis(axis.groups)
        for binding in scope.bindings(free):
            try:
                groups, grouped = scope.axis(name, binding), scope.axis(axis.groups, binding)
            except ExpressionError:
                continue
            if grouped.units % groups.units:
                numbers = f"{grouped.units} % {groups.units} = {grouped.units % groups.units}"
                problem = f"{grouped.source} is no multiple of {groups.source}: {numbers}"
                faults.add(f"axis {name}", problem, place, "is config.json of this checkpoint?")


class _Resolver:
    def __init__(self, spec: Spec, scope: ConfigScope, rules: Rules, faults: Faults) -> None:
        self.spec = spec
        self.scope = scope
        self.rules = rules
        self.faults = faults
        self.absences = Absences(rules, faults)
        self.dtype = STORED_AS[cache_dtype(scope.config)[0]]
        self.at_fault: set[tuple[int, tuple[int, ...]]] = set()
        """Rules and bindings whose tensors were found wanting, and so are not absent."""

    def from_config(self) -> Iterator[Shared]:
        """Each rule once per way in which its meaning differs between layers."""
        first = {
            group: form
            for placed in reversed(self.spec.rules)
            if placed.form
            for group, form in [placed.form]
        }
        for placed in self.spec.rules:
            if placed.form and first[placed.form[0]] != placed.form[1]:
                continue
            # What carries its unit in its name differs from name to name.
            names = placed.pattern.variables if placed.rule.select else self.rules.free(placed)
            for binding in self.scope.bindings(names):
                try:
                    if self.rules.applies(placed, binding):
                        yield from self._alike(placed, binding)
                except (ExpressionError, RuleError) as error:
                    self.faults.add(placed.pattern, str(error), placed.place, _remedy(error), binding)

    def _alike(self, placed: PlacedRule, binding: Mapping[str, int]) -> Iterator[Shared]:
        """What a rule makes of all layers, experts and heads that a binding leaves open."""
        rule, sharing = placed.rule, self.rules.sharing(placed, binding, "weight", None)
        optional = self.rules.optional(placed, binding)
        if optional or placed.pattern.subtree or rule.tag in NO_RANK:
            yield Shared(placed, binding, sharing, count=0 if optional else 1)
            return
        count = prod(len(self.scope.range(name)) for name in placed.pattern.variables if name not in binding)
        for parameter in parameters(self.rules, placed, binding):
            if parameter != "bias" and self.absences.tied(placed):
                continue
            shape = stored_shape(self.rules, placed, binding, parameter)
            dtype = stored_dtype(self.rules, placed, binding, parameter, self.dtype)
            sharing = self.rules.sharing(placed, binding, parameter, shape, dtype)
            # Whether it is a module's weight or a bare parameter, the spec does not say; stacks are bare.
            named = "" if parameter == "weight" else parameter
            named = named.removeprefix("weight") if rule.dims else named
            name = f"{placed.template}{'.' * named[:1].isalpha()}{named}"
            tensor = None if shape is None else declared(name, dtype, shape)
            yield Shared(placed, binding, sharing, named, tensor, count=count)

    def from_tensors(self, tensors: Mapping[str, StoredTensor]) -> tuple[tuple[Shared, ...], tuple[str, ...]]:
        """Every tensor under exactly one rule, every rule with its tensors."""
        matcher = Matcher(self.spec, self.rules.storage.quantization.parameters, self.faults.ranges)
        matched: list[tuple[StoredTensor, list[Match]]] = []
        ignored: list[str] = []
        scalars: list[Shared] = []
        for name, tensor in tensors.items():
            matches = matcher.matches(name)
            if not matches and matcher.ignored(name):
                ignored.append(name)
            elif not matches and name.rpartition(".")[2] in self.rules.storage.quantization.scalars:
                scalars.append(self._scalar(tensor))
            else:
                matched.append((tensor, matches))
        forms = self._forms(matched)
        shared: list[Shared] = []
        for tensor, matches in matched:
            item = self._place(
                tensor, [m for m in matches if m.placed.form is None or m.placed.form in forms]
            )
            if item:
                shared.append(item)
        self.absences.check(shared, forms, self.at_fault)
        for item, problem, remedy in suspicious_vectors(shared):
            self.faults.add(item.placed.pattern, problem, item.placed.place, remedy, item.binding)
        return (*shared, *scalars), tuple(ignored)

    def _scalar(self, tensor: StoredTensor) -> Shared:
        """A scale of the KV cache, which belongs to no matrix."""
        leaf = tensor.name.rpartition(".")[2]
        where = f"specs/quant/{self.rules.storage.quantization.name}.yaml"
        if prod(tensor.shape) != 1:
            problem = (
                f"has shape {list(tensor.shape)}; only one scale for all heads can be given to every rank"
            )
            self.faults.add(tensor.name, problem, where)
        placed = PlacedRule(compile_pattern(leaf), Rule.model_validate("replicated"), where)
        return Shared(placed, {}, Sharing(), leaf, tensor)

    def _forms(self, matched: list[tuple[StoredTensor, list[Match]]]) -> set[tuple[str, str]]:
        """The form of each `one_of` group that the checkpoint has."""
        counts: dict[str, dict[str, str]] = defaultdict(dict)
        for placed in self.spec.rules:
            if placed.form:
                counts[placed.form[0]].setdefault(placed.form[1], "")
        for tensor, matches in matched:
            for match in matches:
                if match.placed.form:
                    group, form = match.placed.form
                    counts[group][form] = counts[group][form] or tensor.name
        chosen = set()
        for group, forms in counts.items():
            present = {form: example for form, example in forms.items() if example}
            if len(present) > 1:
                examples = "; ".join(f"{form}: {example}" for form, example in present.items())
                self.faults.add(
                    group, f"the checkpoint has several forms of one_of ({examples})", self.spec.where
                )
            chosen |= {(group, form) for form in present or list(forms)[:1]}
        return chosen

    def _place(self, tensor: StoredTensor, matches: list[Match]) -> Shared | None:
        outside: Match | None = None
        found: list[Shared] = []
        for match in matches:
            binding = dict(match.binding)
            if any(value not in self.scope.range(name) for name, value in match.binding):
                outside = outside or match
                continue
            try:
                if not self.rules.applies(match.placed, binding):
                    continue
                parameter = "" if match.placed.pattern.subtree else match.parameter
                sharing = self.rules.sharing(match.placed, binding, parameter, tensor.shape, tensor.dtype)
            except (ExpressionError, RuleError) as error:
                placed = match.placed
                self.at_fault.add((id(placed), tuple(binding.values())))
                self.faults.add(
                    placed.pattern, str(error), placed.place, _remedy(error), binding, match.parameter
                )
                return None
            found.append(Shared(match.placed, binding, sharing, match.parameter, tensor, match.prefix))
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            self.at_fault |= {(id(item.placed), tuple(item.binding.values())) for item in found}
            places = " and ".join(item.placed.place for item in found)
            self.faults.add(tensor.name, f"two rules name this tensor: {places}", tensor.file)
        elif outside:
            self._report_outside(tensor, outside)
        elif matches:
            placed = matches[0].placed
            problem = f"no rule applies here: `when: {placed.rule.when}` does not hold"
            self.faults.add(
                placed.pattern, problem, placed.place, "", dict(matches[0].binding), matches[0].parameter
            )
        else:
            self._report_unknown(tensor)
        return None

    def _report_outside(self, tensor: StoredTensor, match: Match) -> None:
        for name, value in match.binding:
            numbers = self.scope.range(name)
            if value not in numbers:
                said = f"{self.spec.ranges[name][-1]} = {numbers.stop}"
                within = f"{numbers.start}-{numbers.stop - 1}" if numbers else "no"
                problem = f"{name} {value} is outside config.json's {said} ({within})"
                remedy = (
                    "is config.json of this checkpoint? If these are extra layers, say so with a drop rule"
                )
                self.faults.add(
                    match.placed.pattern, problem, tensor.file, remedy, dict(match.binding), match.parameter
                )

    def _report_unknown(self, tensor: StoredTensor) -> None:
        problem = f"no rule of {self.spec.where} names this tensor, shape {list(tensor.shape)}"
        remedy = "tag it under `modules`, or list it under `ignore` if nothing needs it"
        self.faults.add(tensor.name, problem, tensor.file, remedy)


def _remedy(error: Exception) -> str:
    return error.remedy if isinstance(error, RuleError) else ""
