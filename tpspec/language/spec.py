"""A spec as the rest of tpspec sees it: inheritance applied, names expanded, every rule placed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tpspec.language.expressions import Expression
from tpspec.language.patterns import Pattern
from tpspec.language.schema import Axis, CacheEntry, Prefix, Rename, Rule, Slice, Split, Stack

Memory = Stack | Split | Rename
"""How names in memory differ from those on disk."""


@dataclass(frozen=True)
class PlacedRule:
    """A rule for one expanded name, and where it stands. `form` is (group, form) under `one_of`."""

    pattern: Pattern
    rule: Rule
    place: str
    form: tuple[str, str] | None = None

    @property
    def template(self) -> str:
        return self.pattern.template

    @cached_property
    def expressions(self) -> tuple[Expression, ...]:
        """Everything in the rule that is computed from the config."""
        rule = self.rule
        optional = None if rule.optional is True else rule.optional
        single = (rule.when, optional, rule.blocks, rule.in_, rule.out, rule.bias, rule.runs)
        many = (*(rule.width or ()), *(rule.shape or ()), *rule.sizes, *(part.width for part in rule.parts))
        return tuple(expression for expression in (*single, *many) if expression is not None)


@dataclass(frozen=True)
class RankSettings:
    """What a rank's model is told after it is built."""

    config: Mapping[str, Expression]
    attributes: Mapping[str, Mapping[str, Expression]]
    slice: Mapping[str, Slice]
    buffers: Mapping[str, Slice]


@dataclass(frozen=True)
class Spec:
    """One architecture's spec, resolved. `texts` are the files it was made from, base first."""

    name: str
    model_types: tuple[str, ...]
    extends: tuple[str, ...]
    prefixes: tuple[Prefix, ...]
    let: Mapping[str, Expression]
    per_layer: Mapping[str, Expression]
    ranges: Mapping[str, tuple[Expression, ...]]
    active: Mapping[str, Expression]
    axes: Mapping[str, Axis]
    hidden: Expression | None
    rules: tuple[PlacedRule, ...]
    ignore: tuple[str, ...]
    memory: tuple[Memory, ...]
    cache: tuple[CacheEntry, ...]
    runtime: RankSettings
    tiny: Mapping[str, Any]
    inputs: Mapping[str, tuple[Expression, ...]]
    model_class: str | None
    attention: str | None
    decode: str | None
    where: str
    places: Mapping[str, str] = field(repr=False)
    sha256: str = field(repr=False)

    @cached_property
    def definitions(self) -> Mapping[str, Expression]:
        """Names that the spec computes, whether for the model or for each layer."""
        return {**self.let, **self.per_layer}

    def names_of(self, stored: str) -> Iterator[tuple[str, Prefix]]:
        """What a stored name may be called in the spec, one name for each prefix that it has."""
        for prefix in self.prefixes:
            name = prefix.strip(stored)
            if name is not None:
                yield name, prefix

    def place(self, section: str, key: str) -> str:
        """`file:line` of an entry of a section."""
        return self.places.get(f"{section}.{key}", self.where)
