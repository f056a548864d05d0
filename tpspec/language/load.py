"""From a spec file to a `Spec`: inheritance, expanded names, and the checks that need no config."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from tpspec.errors import Finding, TpspecError
from tpspec.language.documents import SpecFile, read_spec_file
from tpspec.language.expressions import Expression
from tpspec.language.patterns import PatternError, compile_pattern, expand
from tpspec.language.schema import Rule, Runtime, Stack
from tpspec.language.spec import PlacedRule, Spec
from tpspec.language.tags import TAGS

T = TypeVar("T")
MAX_BASES = 16

Find = Callable[[str, Path], tuple[Path, str]]
"""Finds the file of a spec by its name, seen from another file; also says how to show its path."""

RuleKey = tuple[tuple[str, str] | None, str]


def load_spec(path: Path, where: str, find: Find) -> Spec:
    """Loads a spec and its bases. Raises TpspecError with all complaints of the first bad stage."""
    files = _with_bases(path, where, find)
    spec = _merge(files)
    findings = list(_check(spec))
    if findings:
        raise TpspecError(f"{where} is not a valid spec", findings)
    return spec


def _with_bases(path: Path, where: str, find: Find) -> list[SpecFile]:
    """The file and everything it extends, bases first, each once."""
    files: dict[Path, SpecFile] = {}

    def visit(path: Path, where: str, chain: tuple[str, ...]) -> None:
        if where in chain:
            raise TpspecError(f"{where}: 'extends' goes in a circle: {' → '.join((*chain, where))}")
        if path in files:
            return
        if len(files) + len(chain) > MAX_BASES:
            raise TpspecError(f"{where}: more than {MAX_BASES} bases")
        file = read_spec_file(path, where)
        for base in file.content.extends:
            try:
                found, shown = find(base, path)
            except TpspecError as error:
                raise TpspecError(f"{file.place('extends')}: {error.message}", remedy=error.remedy) from None
            visit(found, shown, (*chain, where))
        files[path] = file

    visit(path, where, ())
    return list(files.values())


def _merge(files: list[SpecFile]) -> Spec:
    last = files[-1].content
    places: dict[str, str] = {}
    rules: dict[RuleKey, tuple[PlacedRule, ...]] = {}
    ignore: dict[str, None] = {}
    for file in files:
        content = file.content
        for section in ("let", "per_layer", "ranges", "axes"):
            for key in getattr(content, section):
                places[f"{section}.{key}"] = file.place(section, key)
        rules |= dict(_rules(file))
        ignore |= dict.fromkeys(content.ignore)
    runtime = Runtime(
        config=_layered(files, lambda c: c.runtime.config),
        attributes=_layered(files, lambda c: c.runtime.attributes),
        slice=_layered(files, lambda c: c.runtime.slice),
        buffers=_layered(files, lambda c: c.runtime.buffers),
    )
    return Spec(
        name=last.architecture,
        model_types=last.model_types,
        extends=last.extends,
        prefixes=_latest(files, lambda c: c.prefixes) or ("",),
        let=_layered(files, lambda c: c.let),
        per_layer=_layered(files, lambda c: c.per_layer),
        ranges=_layered(files, lambda c: c.ranges),
        axes=_layered(files, lambda c: c.axes),
        hidden=_latest(files, lambda c: c.hidden),
        rules=tuple(rule for placed in rules.values() for rule in placed),
        ignore=tuple(ignore),
        memory=_latest(files, lambda c: c.memory) or (),
        cache=_latest(files, lambda c: c.cache) or (),
        runtime=runtime,
        tiny=_layered(files, lambda c: c.tiny),
        model_class=_latest(files, lambda c: c.model_class),
        attention=_latest(files, lambda c: c.attention),
        decode=_latest(files, lambda c: c.decode),
        where=files[-1].source.where,
        places=places,
        sha256=hashlib.sha256(b"\0".join(file.raw for file in files)).hexdigest(),
    )


def _layered(files: list[SpecFile], of: Callable[[Any], Mapping[str, T | None]]) -> dict[str, T]:
    """Mappings of the bases and the file itself, later ones winning; null takes an entry away."""
    merged: dict[str, T | None] = {}
    for file in files:
        merged |= of(file.content)
    return {key: value for key, value in merged.items() if value is not None}


def _latest(files: list[SpecFile], of: Callable[[Any], T | None]) -> T | None:
    return next((value for file in reversed(files) if (value := of(file.content)) is not None), None)


def _rules(file: SpecFile) -> Iterator[tuple[RuleKey, tuple[PlacedRule, ...]]]:
    """The rules of one file by form and expanded name; an empty tuple takes a base's rule away."""
    groups: list[tuple[tuple[str, str] | None, tuple[str, ...], Mapping[str, tuple[Rule, ...]]]]
    groups = [(None, ("modules",), file.content.modules)]
    for group, forms in file.content.one_of.items():
        groups += [((group, form), ("one_of", group, form), rules) for form, rules in forms.items()]
    for form, key, modules in groups:
        for text, rules in modules.items():
            try:
                templates = expand(text)
                patterns = [compile_pattern(template) for template in templates]
            except PatternError as error:
                raise TpspecError(f"{file.place(*key, text)}: {error}") from None
            for pattern in patterns:
                placed = (
                    PlacedRule(pattern, rule, file.place(*key, text, i), form) for i, rule in enumerate(rules)
                )
                yield (form, pattern.template), tuple(placed)


def _check(spec: Spec) -> Iterator[Finding]:
    yield from _check_names(spec)
    yield from _check_circles(spec)
    yield from _check_pairs(spec)
    if not spec.rules:
        yield Finding("modules", "a spec has at least one rule", spec.where)


def _check_names(spec: Spec) -> Iterator[Finding]:
    axes, ranges = set(spec.axes), set(spec.ranges)
    for name, axis in spec.axes.items():
        if axis.groups and axis.groups not in axes:
            yield _unknown("axis", axis.groups, axes, f"axes.{name}", spec.place("axes", name))
    for placed in spec.rules:
        rule = placed.rule
        named = [p.axis for p in rule.parts if p.axis != "replicated"]
        named += filter(None, (rule.interleaved, rule.select, rule.norm and rule.norm.groups))
        for name in named:
            if name not in axes:
                yield _unknown("axis", name, axes, placed.template, placed.place)
        for name in placed.pattern.variables:
            if name not in ranges:
                yield _unknown("range", name, ranges, placed.template, placed.place)
        widths = rule.width or (None,) * len(rule.parts)
        for part, width in zip(rule.parts, widths * len(rule.parts), strict=False):
            if part.axis == "replicated" and part.width is None and width is None:
                problem = "a replicated part needs its width"
                yield Finding(placed.template, problem, placed.place)
    if spec.rules:
        templates = {placed.template for placed in spec.rules}
        for placed in spec.rules:
            if placed.rule.tied_to and placed.rule.tied_to not in templates:
                yield _unknown("module", placed.rule.tied_to, templates, placed.template, placed.place)
    local = [("cache", e) for c in spec.cache for e in (c.when, c.per_token, c.per_sequence, c.window) if e]
    local += [(f"runtime.config.{key}", e) for key, e in spec.runtime.config.items()]
    local += [(f"runtime.attributes.{m}", e) for m, a in spec.runtime.attributes.items() for e in a.values()]
    for subject, expression in local:
        for name in expression.axes - axes:
            yield _unknown("axis", name, axes, subject, spec.where)
    for key, cut in (*spec.runtime.slice.items(), *spec.runtime.buffers.items()):
        if cut.axis not in axes:
            yield _unknown("axis", cut.axis, axes, f"runtime.{key}", spec.where)
    for entry in spec.memory:
        if isinstance(entry, Stack) and entry.over not in ranges:
            yield _unknown("range", entry.over, ranges, f"memory {entry.into}", spec.where)


def _unknown(kind: str, name: str, known: set[str], subject: str, place: str) -> Finding:
    close = get_close_matches(name, known, n=1)
    remedy = f"did you mean '{close[0]}'?" if close else ""
    return Finding(
        subject, f"there is no {kind} '{name}'; there are {', '.join(sorted(known))}", place, remedy
    )


def _check_circles(spec: Spec) -> Iterator[Finding]:
    """A definition may read the config's value of its own name, but not itself through others."""

    def reaches(name: str, goal: str, seen: frozenset[str]) -> bool:
        return any(
            used == goal or (used not in seen and reaches(used, goal, seen | {used}))
            for used in _uses(spec.definitions, name)
        )

    for name in spec.definitions:
        if reaches(name, name, frozenset()):
            section = "let" if name in spec.let else "per_layer"
            yield Finding(f"{section}.{name}", "is defined by itself", spec.place(section, name))


def _uses(definitions: Mapping[str, Expression], name: str) -> set[str]:
    return {used for used in definitions[name].names if used in definitions and used != name}


def _check_pairs(spec: Spec) -> Iterator[Finding]:
    """The pairing law: what a row-parallel matrix consumes was produced in shares of the same axis."""
    for placed in spec.rules:
        if placed.rule.tag != "row":
            continue
        axis = placed.rule.parts[0].axis
        produced = [
            other
            for other in spec.rules
            if other.rule.tag != "row"
            and any(part.axis == axis for part in other.rule.parts)
            and set(other.pattern.variables) <= set(placed.pattern.variables)
        ]
        if produced:
            continue
        block = placed.template.rpartition(".")[0]
        beside = [
            other.template
            for other in spec.rules
            if other.template.rpartition(".")[0] == block and TAGS[other.rule.tag].dimension != "in"
        ]
        names = ", ".join(beside) or "nothing else in its block"
        problem = f"is cut along '{axis}', which no matrix of the layer produces in shares ({names})"
        yield Finding(
            placed.template, problem, placed.place, f"cut what feeds it by '{axis}', or replicate both"
        )
