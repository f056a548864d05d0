"""From a spec file to a `Spec`: inheritance, expanded names, and the checks that need no config."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tpspec.errors import TpspecError
from tpspec.language.checks import complaints
from tpspec.language.documents import SpecFile, read_spec_file
from tpspec.language.expressions import Expression
from tpspec.language.patterns import PatternError, compile_pattern, expand
from tpspec.language.schema import NO_PREFIX, Rule
from tpspec.language.spec import Memory, PlacedRule, RankSettings, Spec

T = TypeVar("T")
MAX_BASES = 16

Find = Callable[[str, Path], tuple[Path, str]]
"""Finds the file of a spec by its name, seen from another file; also says how to show its path."""

RuleKey = tuple[tuple[str, str] | None, str]


def load_spec(path: Path, where: str, find: Find) -> Spec:
    """Loads a spec and its bases. Raises TpspecError with all complaints of the first bad stage."""
    files = _with_bases(path, where, find)
    spec = _merge(files)
    findings = list(complaints(spec))
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
    runtime = RankSettings(
        config=_layered(files, lambda c: c.runtime.config),
        attributes=_attributes(files),
        slice=_layered(files, lambda c: c.runtime.slice),
        buffers=_layered(files, lambda c: c.runtime.buffers),
    )
    return Spec(
        name=last.architecture,
        model_types=last.model_types,
        extends=last.extends,
        prefixes=_latest(files, lambda c: c.prefixes) or (NO_PREFIX,),
        let=_layered(files, lambda c: c.let),
        per_layer=_layered(files, lambda c: c.per_layer),
        ranges=_layered(files, lambda c: c.ranges),
        active=_layered(files, lambda c: c.active),
        axes=_layered(files, lambda c: c.axes),
        hidden=_latest(files, lambda c: c.hidden),
        rules=tuple(rule for placed in rules.values() for rule in placed),
        ignore=tuple(ignore),
        memory=_memory(files),
        cache=_latest(files, lambda c: c.cache) or (),
        runtime=runtime,
        tiny=_layered(files, lambda c: c.tiny),
        inputs=_layered(files, lambda c: c.inputs),
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


def _attributes(files: list[SpecFile]) -> dict[str, dict[str, Expression]]:
    """Attributes of each module, those of the bases and the file's own together; null takes away."""
    merged: dict[str, dict[str, Expression | None]] = {}
    for file in files:
        for module, attributes in file.content.runtime.attributes.items():
            merged[module] = {} if attributes is None else merged.get(module, {}) | attributes
    said = {module: {k: v for k, v in values.items() if v is not None} for module, values in merged.items()}
    return {module: values for module, values in said.items() if values}


def _memory(files: list[SpecFile]) -> tuple[Memory, ...]:
    """The entries of the file itself, and after them those of its bases that it does not say anew."""
    entries: dict[str, Memory] = {}
    for file in reversed(files):
        for entry in file.content.memory:
            entries.setdefault(entry.stored, entry)
    return tuple(entries.values())


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
