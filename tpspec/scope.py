"""The values that a spec's expressions see for one config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import product
from typing import Any

from tpspec import axes as shared
from tpspec.errors import Finding, TpspecError
from tpspec.language.expressions import Expression, ExpressionError, parse, shown
from tpspec.language.spec import Spec
from tpspec.padding import Pad, Pair

MAX_RANGE = 65_536
"""More layers, experts or heads than this is a broken config, not a model."""

Values = Mapping[str, int]


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the text part's values on top, where the model has several parts.

    Its class is the whole model's to say, and whether the head is tied; a text part's false is but the
    default of its class.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        return dict(config)
    tied = config.get("tie_word_embeddings")
    return {
        **config,
        **text,
        "architectures": config.get("architectures"),
        "tie_word_embeddings": text.get("tie_word_embeddings") or None if tied is None else tied,
    }


class ConfigScope:
    """Looks names up: ranges in braces, what the spec defines, then the config itself."""

    def __init__(
        self, spec: Spec, config: Mapping[str, Any], tp: int | None = None, pad: Pad | None = None
    ) -> None:
        self.spec = spec
        self.config = flatten(config)
        self.tp = tp
        self.pad = pad
        self._free: dict[str, frozenset[str]] = {}
        self._memo: dict[tuple[str, tuple[int | None, ...]], Any] = {}
        self._ranges: dict[str, range] = {}

    def evaluate(self, expression: Expression, binding: Values | None = None) -> Any:
        """An expression's value for one binding of the ranges. Raises ExpressionError."""
        return expression.evaluate(_Bound(self, binding or {}))

    def count(self, expression: Expression, binding: Values | None = None, least: int = 1) -> int:
        """An expression's value where it has to be a count. Raises ExpressionError where it is none.

        A name that the config lacks is told apart from a wrong value, with the names that are near it.
        """
        try:
            return expression.count(_Bound(self, binding or {}), least)
        except ExpressionError as error:
            absent = str(error).removeprefix("config.json has no ")
            present = [name for name, value in self.config.items() if value is not None]
            close = get_close_matches(absent, present, n=1) if absent != str(error) else []
            raise ExpressionError(f"{error}; did you mean {close[0]}?" if close else str(error)) from None

    def values(self, expression: Expression) -> str:
        """What an expression's names stand for, as text."""
        names = [*sorted(expression.names), *(f"local({axis})" for axis in sorted(expression.axes))]
        return ", ".join(f"{name} = {shown(self.evaluate(parse(name)))}" for name in names)

    def free(self, expressions: Iterable[Expression | None]) -> frozenset[str]:
        """The ranges that expressions depend on, directly or through what the spec defines."""
        found: set[str] = set()
        for expression in expressions:
            if expression is not None:
                for name in expression.names:
                    found |= self._free_of(name)
                for axis in expression.axes:
                    found |= self.free_of_axis(axis)
        return frozenset(found)

    def free_of_axis(self, name: str) -> frozenset[str]:
        """The ranges that an axis's sizes depend on, and its placement where it is padded with another."""
        names = {name, *(self._paired(name) or ())} if self.pad else (name,)
        axes = [self.spec.axes[each] for each in names]
        return self.free(size for axis in axes for size in (axis.units, axis.width, axis.real))

    def _free_of(self, name: str) -> frozenset[str]:
        if name not in self._free:
            self._free[name] = frozenset({name} & self.spec.ranges.keys())
            if name in self.spec.definitions:
                self._free[name] |= self.free([self.spec.definitions[name]])
        return self._free[name]

    def range(self, name: str) -> range:
        """The numbers that a range stands for. Raises TpspecError where the config's are absurd."""
        if name not in self._ranges:
            place = self.spec.place("ranges", name)
            try:
                bounds = [self.count(expression, least=0) for expression in self.spec.ranges[name]]
            except ExpressionError as error:
                raise TpspecError(
                    "config.json is not a model's", [Finding(name, str(error), place)]
                ) from None
            start, stop = bounds if len(bounds) == 2 else (0, bounds[0])
            least = int(name == "layer")
            if not least <= stop <= MAX_RANGE:
                said = f"{self.spec.ranges[name][-1]} = {shown(stop)}"
                problem = f"{said}; a count lies between {least} and {MAX_RANGE}"
                raise TpspecError("config.json is not a model's", [Finding(name, problem, place)])
            self._ranges[name] = range(start, stop)
        return self._ranges[name]

    def bindings(self, names: Iterable[str]) -> Iterable[dict[str, int]]:
        """All combinations of the numbers of some ranges."""
        names = tuple(names)
        return (dict(zip(names, values, strict=True)) for values in product(*map(self.range, names)))

    def axis(self, name: str, binding: Values | None = None, *, pad: bool = False) -> shared.Axis:
        """An axis with its sizes. Raises ExpressionError where they are not positive counts.

        `pad` fills up this axis alone (a vocabulary), the scope's `pad` every axis.
        """
        axis = self.spec.axes[name]
        units = self.count(axis.units, binding)
        width = 1 if axis.width is None else self.count(axis.width, binding)
        real = None if axis.real is None else min(units, self.count(axis.real, binding))
        sized = shared.Axis(
            name, units, width, replicate=axis.replicate, pad=pad, source=str(axis.units), real=real
        )
        if self.pad and pad:
            return replace(sized, multiple=self.pad.multiples.get(name, 1))
        return self._padded(sized, binding, self.pad) if self.pad else sized

    def _padded(self, axis: shared.Axis, binding: Values | None, pad: Pad) -> shared.Axis:
        """The axis with its zero units; as it is where it groups otherwise what another axis has placed."""
        names = self._paired(axis.name)
        if names is None:
            return replace(axis, pad=True, multiple=pad.multiples.get(axis.name, 1), align=pad.align)
        leader, member = names
        groups, members = (self.count(self.spec.axes[each].units, binding) for each in (leader, member))
        leads = axis.name != member
        if members % groups or (leads and axis.units != groups):
            return axis
        pair = Pair(
            groups,
            members // groups,
            max(1, pad.rows.get(leader, 1)),
            max(1, pad.rows.get(member, 1)),
            self.spec.axes[leader].replicate,
            pad.multiples.get(member, 1),
            pad.order,
            member in pad.full,
        )
        return replace(axis, pad=True, pair=pair, leads=leads)

    def _paired(self, name: str) -> tuple[str, str] | None:
        """The axis that places a pair's units, and the one whose units it groups; None for a single axis."""
        member = self.spec.axes[name].groups or name
        return next(
            ((other, member) for other, axis in self.spec.axes.items() if axis.groups == member), None
        )

    def lookup(self, name: str, binding: Values) -> Any:
        """A name's value; None where nothing defines it."""
        if name in binding:
            return binding[name]
        if name in self.spec.definitions:
            key = (name, tuple(binding.get(free) for free in sorted(self._free_of(name))))
            if key not in self._memo:
                expression = self.spec.definitions[name]
                self._memo[key] = expression.evaluate(_Bound(self, binding, itself=name))
            return self._memo[key]
        return self.tp if name == "tp" else self.config.get(name)


class _Bound:
    """A scope for one binding; inside a definition, its own name means the config's value."""

    def __init__(self, scope: ConfigScope, binding: Values, itself: str = "") -> None:
        self.scope = scope
        self.binding = binding
        self.itself = itself

    def lookup(self, name: str) -> Any:
        return self.scope.config.get(name) if name == self.itself else self.scope.lookup(name, self.binding)

    def local(self, axis: str) -> int:
        if self.scope.tp is None:
            raise ExpressionError(f"local({axis}) needs a tp size")
        return self.scope.axis(axis, self.binding).local(self.scope.tp)
