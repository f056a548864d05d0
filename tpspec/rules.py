"""A rule at one place of a model: from spec, config and shape to how the tensor is shared."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm, prod
from typing import NamedTuple

from tpspec.axes import Axis
from tpspec.cuts import Extent
from tpspec.language.expressions import Expression, ExpressionError
from tpspec.language.schema import Part
from tpspec.language.spec import PlacedRule
from tpspec.language.tags import NO_RANK, TAGS
from tpspec.quantization import Dimension, Format, weight_dimensions
from tpspec.scope import ConfigScope
from tpspec.sharing import Sharing

OWN_CONFIG = "is config.json of this checkpoint?"


class RuleError(ValueError):
    """A rule does not fit the config or the tensor. `remedy` says what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class Size(NamedTuple):
    """A dimension's size, and the expression that gives it."""

    number: int
    source: str


class Rules:
    """Evaluates rules for one config; results are shared between layers that look alike."""

    def __init__(self, scope: ConfigScope, stored: Format) -> None:
        self.scope = scope
        self.stored = stored
        self._memo: dict[tuple[object, ...], object] = {}
        self._free: dict[int, tuple[str, ...]] = {}

    def free(self, placed: PlacedRule) -> tuple[str, ...]:
        """The ranges that the rule's meaning depends on, in its name's order."""
        key = id(placed)
        if key not in self._free:
            axes = [part.axis for part in placed.rule.parts if part.axis != "replicated"]
            axes += filter(None, (placed.rule.interleaved, placed.rule.select))
            hidden = () if self.scope.spec.hidden is None else (self.scope.spec.hidden,)
            free = self.scope.free((*placed.expressions, *hidden))
            free = free.union(*(self.scope.free_of_axis(axis) for axis in axes))
            self._free[key] = tuple(name for name in placed.pattern.variables if name in free)
        return self._free[key]

    def applies(self, placed: PlacedRule, binding: Mapping[str, int]) -> bool:
        """Whether the rule's `when` holds."""
        when = placed.rule.when
        if when is None:
            return True
        key = ("when", id(placed), *(binding[name] for name in self.free(placed)))
        if key not in self._memo:
            self._memo[key] = bool(self.scope.evaluate(when, binding))
        return bool(self._memo[key])

    def sharing(
        self, placed: PlacedRule, binding: Mapping[str, int], parameter: str, shape: tuple[int, ...] | None
    ) -> Sharing:
        """How the tensor is shared; with a shape, checked against what rule and config say.

        `parameter` is the tensor's name within its module, empty for a bare parameter. Without a
        shape (a config alone) the sharing is that of the module's weight, in whole blocks where the
        config says that linears are quantized.
        Raises RuleError and ExpressionError.
        """
        free = self.free(placed)
        key = (id(placed), parameter, shape, *(binding[name] for name in free))
        if placed.rule.select:
            key = (*key, *binding.values())
        if key not in self._memo:
            try:
                self._memo[key] = self._sharing(placed, binding, parameter, shape)
            except (RuleError, ExpressionError) as error:
                self._memo[key] = error
        result = self._memo[key]
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, Sharing)
        return result

    def _sharing(
        self, placed: PlacedRule, binding: Mapping[str, int], parameter: str, shape: tuple[int, ...] | None
    ) -> Sharing:
        rule, tag = placed.rule, TAGS[placed.rule.tag]
        if rule.tag in NO_RANK:
            return Sharing(apart=True)
        if rule.tag == "select":
            assert rule.select is not None
            unit = list(binding.values())[-1] if binding else 0
            return Sharing(select=(self.scope.axis(rule.select, binding), unit))
        if rule.shape is not None and parameter in ("", "weight"):
            expected = tuple(self.scope.count(e, binding, least=0) for e in rule.shape)
            if shape not in (None, expected):
                raise RuleError(_differs(shape, expected, rule.shape))
        if not tag.cuts:
            return Sharing(once=rule.tag == "once")
        if parameter == "bias" and tag.bias == "once":
            return Sharing(once=True)
        parts = self._extents(placed, binding)
        blocks = 1 if rule.blocks is None else self.scope.count(rule.blocks, binding)
        interleaved = self._interleaved(placed, parts, binding)
        if shape is None:
            along = rule.dim
            if along is None:
                matrix = self._dimensions(placed, "weight", len(rule.dims) if rule.dims else 2)
                along = self._position(placed, "weight", matrix)
            return Sharing(along or 0, parts, interleaved, blocks, self._block(placed))
        dimensions = self._dimensions(placed, parameter, len(shape))
        position = self._position(placed, parameter, dimensions)
        if position is None:
            return Sharing()
        sharing = Sharing(position, parts, interleaved, blocks, dimensions[position].divisor)
        if shape[position] != sharing.size:
            terms = " + ".join(f"{part.units} × {part.width}" for part in parts)
            whole = f"{blocks} × ({terms})" if blocks > 1 else terms
            scaled = f", in blocks of {sharing.divisor}" if sharing.divisor > 1 else ""
            raise RuleError(
                f"shape {list(shape)} has {shape[position]} in dimension {position}, but config.json "
                f"makes it {sharing.size} ({whole} of {rule.described()}{scaled})",
                _other_rule(placed, shape, position, sharing.size) or OWN_CONFIG,
            )
        self._check_others(placed, binding, shape, dimensions, position)
        return sharing

    def _extents(self, placed: PlacedRule, binding: Mapping[str, int]) -> tuple[Extent, ...]:
        rule = placed.rule
        widths: tuple[Expression | None, ...] = rule.width or (None,)
        widths = widths * len(rule.parts) if len(widths) == 1 else widths
        return tuple(
            self._extent(placed, part, width or part.width, binding)
            for part, width in zip(rule.parts, widths, strict=True)
        )

    def _extent(
        self, placed: PlacedRule, part: Part, width: Expression | None, binding: Mapping[str, int]
    ) -> Extent:
        if part.axis == "replicated":
            assert width is not None
            return Extent(None, self.scope.count(width, binding))
        axis = self.scope.axis(part.axis, binding, pad=placed.rule.tag == "vocab")
        return Extent(axis, axis.width if width is None else self.scope.count(width, binding))

    def _interleaved(
        self, placed: PlacedRule, parts: tuple[Extent, ...], binding: Mapping[str, int]
    ) -> Axis | None:
        if placed.rule.interleaved is None:
            return None
        groups = self.scope.axis(placed.rule.interleaved, binding)
        for part in parts:
            if part.axis is None or part.units % groups.units:
                name = part.axis.name if part.axis else "replicated"
                numbers = f"{part.units} % {groups.units} = {part.units % groups.units}"
                raise RuleError(f"'{name}' does not fill the groups of '{groups.name}': {numbers}")
        return groups

    def _dimensions(self, placed: PlacedRule, parameter: str, ndim: int) -> tuple[Dimension, ...]:
        rule = placed.rule
        in_out = rule.layout == "in-out"
        if rule.dims is not None and parameter in ("", "weight"):
            dimensions = tuple(Dimension(name) for name in rule.dims)
        elif parameter:
            dimensions = self.stored.dimensions(parameter, ndim, in_out=in_out)
        else:
            dimensions = weight_dimensions(ndim, in_out=in_out)
        if len(dimensions) != ndim:
            stored = ", ".join(d.name for d in dimensions)
            raise RuleError(f"has {ndim} dimensions, not the {len(dimensions)} of [{stored}]")
        return dimensions

    def _block(self, placed: PlacedRule) -> int:
        """Rows or columns that no cut may part, where the config says that linears are quantized."""
        rule, cut = placed.rule, TAGS[placed.rule.tag].dimension
        if rule.tag == "vocab" or rule.norm:
            return 1
        stored = (d for dimensions in self.stored.parameters.values() for d in dimensions)
        return lcm(*(dimension.divisor for dimension in stored if dimension.name == cut))

    def _position(self, placed: PlacedRule, parameter: str, dimensions: tuple[Dimension, ...]) -> int | None:
        """The stored dimension that is cut; None where a scale has none along the cut."""
        rule, tag = placed.rule, TAGS[placed.rule.tag]
        if rule.dim is not None and parameter in ("", "weight"):
            if rule.dim >= len(dimensions):
                raise RuleError(f"has {len(dimensions)} dimensions, and the rule cuts dimension {rule.dim}")
            return rule.dim
        for position, dimension in enumerate(dimensions):
            if dimension.name == tag.dimension:
                return position
        if parameter in ("", "weight"):
            raise RuleError(f"'{rule.tag}' cuts the {tag.dimension}put dimension, and this tensor has none")
        return None

    def _check_others(
        self,
        placed: PlacedRule,
        binding: Mapping[str, int],
        shape: tuple[int, ...],
        dimensions: tuple[Dimension, ...],
        position: int,
    ) -> None:
        """The dimensions that are not cut are the residual stream's, or what `in`, `out` and `dims` say."""
        rule = placed.rule
        plain_matrix = len(shape) == 2 and rule.dim is None
        for other, (name, divisor) in enumerate(dimensions):
            told = name not in ("in", "out") or rule.in_ or rule.out or plain_matrix or rule.dims
            if other == position or not told:
                continue
            size = self.size(placed, binding, name)
            if size is not None and shape[other] != -(-size.number // divisor):
                raise RuleError(
                    f"shape {list(shape)} has {shape[other]} in dimension {other}, but config.json makes it "
                    f"{-(-size.number // divisor)} ({size.source})",
                    OWN_CONFIG,
                )

    def size(self, placed: PlacedRule, binding: Mapping[str, int], name: str) -> Size | None:
        """The size of a dimension that is not cut, undivided; None where the spec does not say it."""
        rule = placed.rule
        if name in ("in", "out"):
            said = rule.out if name == "out" else rule.in_
            expression = said or self.scope.spec.hidden
        elif name in self.scope.spec.ranges and name not in binding:
            return Size(len(self.scope.range(name)), str(self.scope.spec.ranges[name][-1]))
        else:
            expression = next((size for size in rule.sizes if size.text == name), None)
        return None if expression is None else Size(self.scope.count(expression, binding), str(expression))


def _other_rule(placed: PlacedRule, shape: tuple[int, ...], position: int, size: int) -> str:
    """The rule that would fit a matrix better; empty where none that is known does."""
    rule = placed.rule
    if len(shape) != 2 or len(rule.parts) != 1 or rule.tag not in ("column", "row", "qkv-head"):
        return ""
    axis, (count, rest) = rule.parts[0].axis, divmod(shape[position], size)
    if not rest and count in {"column": (2, 3), "qkv-head": (3,)}.get(rule.tag, ()):
        tag = "merged" if rule.tag == "column" else rule.tag
        return f"{count} parts? {tag}: [{', '.join([axis] * count)}]"
    if shape[1 - position] == size:
        fitting = "column" if rule.tag == "row" else "row"
        return f"{axis} is in dimension {1 - position}: {{{fitting}: {axis}}}, or another layout?"
    return ""


def _differs(shape: tuple[int, ...], expected: tuple[int, ...], said: tuple[Expression, ...]) -> str:
    source = ", ".join(map(str, said))
    sizes = f"{prod(shape)} elements" if len(shape) != len(expected) else "shape"
    return f"{sizes} {list(shape)}, but the spec says {list(expected)} ({source})"
