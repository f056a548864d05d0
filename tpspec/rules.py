"""A rule at one place of a model: from spec, config and shape to how the tensor is shared."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from tpspec.axes import Axis
from tpspec.cuts import Extent
from tpspec.dimensions import dimensions_of, full_name
from tpspec.dtypes import across_bytes
from tpspec.language.expressions import Expression, ExpressionError
from tpspec.language.schema import Part
from tpspec.language.spec import PlacedRule
from tpspec.language.tags import NO_RANK, TAGS
from tpspec.module_storage import ModuleStorage
from tpspec.quantization import Quantization
from tpspec.scope import ConfigScope
from tpspec.sharing import BLOCK, Sharing
from tpspec.stored import PLAIN, Dimension, Stored

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

    def __init__(self, scope: ConfigScope, quantization: Quantization) -> None:
        self.scope = scope
        self.storage = ModuleStorage(scope, quantization)
        self._memo: dict[tuple[object, ...], object] = {}
        self._free: dict[int, tuple[str, ...]] = {}
        self._sized: dict[int, tuple[str, ...]] = {}

    def free(self, placed: PlacedRule) -> tuple[str, ...]:
        """The ranges over which a rule's modules differ, in size or in how they are stored.

        The second is known where the config tells modules apart by their names.
        """
        key = id(placed)
        if key not in self._free:
            by_name = self.storage.differs_by_name(placed)
            self._free[key] = placed.pattern.variables if by_name else self._sized_by(placed)
        return self._free[key]

    def _sized_by(self, placed: PlacedRule) -> tuple[str, ...]:
        """The ranges that the rule's sizes and conditions depend on."""
        key = id(placed)
        if key not in self._sized:
            axes = [part.axis for part in placed.rule.parts if part.axis != "replicated"]
            axes += filter(None, (placed.rule.interleaved, placed.rule.select))
            hidden = () if self.scope.spec.hidden is None else (self.scope.spec.hidden,)
            free = self.scope.free((*placed.expressions, *hidden))
            free = free.union(*(self.scope.free_of_axis(axis) for axis in axes))
            self._sized[key] = tuple(name for name in placed.pattern.variables if name in free)
        return self._sized[key]

    def applies(self, placed: PlacedRule, binding: Mapping[str, int]) -> bool:
        """Whether the rule's `when` holds."""
        when = placed.rule.when
        if when is None:
            return True
        key = ("when", id(placed), *(binding[name] for name in self._sized_by(placed)))
        if key not in self._memo:
            self._memo[key] = bool(self.scope.evaluate(when, binding))
        return bool(self._memo[key])

    def optional(self, placed: PlacedRule, binding: Mapping[str, int]) -> bool:
        """Whether a checkpoint may leave a module's tensors out. Raises ExpressionError."""
        said = placed.rule.optional
        return bool(said is True or (said and self.scope.evaluate(said, binding)))

    def sharing(
        self,
        placed: PlacedRule,
        binding: Mapping[str, int],
        parameter: str,
        shape: tuple[int, ...] | None,
        dtype: str = "",
    ) -> Sharing:
        """How the tensor is shared; with a shape, checked against what rule and config say.

        `parameter` is the tensor's name within its module; of a bare parameter, what follows its name.
        Without a shape (a config alone) the sharing is that of the module's weight, in whole blocks
        where the config says that it is quantized.
        Raises RuleError and ExpressionError.
        """
        if shape is None:
            stored = self.storage.told(placed, binding)
        else:
            stored = self.storage.found(placed, binding, parameter, dtype)
        sized_by = self._sized_by(placed)
        key = (id(placed), id(stored), parameter, shape, dtype, *(binding[name] for name in sized_by))
        if placed.rule.select:
            key = (*key, *binding.values())
        if key not in self._memo:
            try:
                self._memo[key] = self._sharing(placed, binding, stored, parameter, shape, dtype)
            except (RuleError, ExpressionError) as error:
                self._memo[key] = error
        result = self._memo[key]
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, Sharing)
        return result

    def _sharing(
        self,
        placed: PlacedRule,
        binding: Mapping[str, int],
        stored: Stored,
        parameter: str,
        shape: tuple[int, ...] | None,
        dtype: str,
    ) -> Sharing:
        rule, tag = placed.rule, TAGS[placed.rule.tag]
        if rule.tag in NO_RANK:
            return Sharing(apart=True)
        if rule.tag == "select":
            assert rule.select is not None
            unit = list(binding.values())[-1] if binding else 0
            return Sharing(select=(self.scope.axis(rule.select, binding), unit))
        known = (
            stored.parameters.get(full_name(parameter)) if stored.quantized and shape is not None else None
        )
        if known and dtype and not known.accepts(dtype):
            raise RuleError(f"is {dtype}, not {' or '.join(known.dtypes) or 'of a floating-point type'}")
        if rule.shape and parameter in ("", "weight") and not known:
            expected = tuple(self.scope.count(e, binding, least=0) for e in rule.shape)
            if shape not in (None, expected):
                raise RuleError(_differs(shape, expected, rule.shape))
        if parameter == "bias" and tag.bias == "once":
            return Sharing(once=True)
        if not tag.cuts:
            if known and shape is not None and rule.shape:
                self._check_sizes(placed, binding, shape, self._dimensions(placed, stored, parameter, shape))
            return Sharing(once=rule.tag == "once")
        parts = self._extents(placed, binding)
        blocks = 1 if rule.blocks is None else self.scope.count(rule.blocks, binding)
        interleaved = self._interleaved(placed, parts, binding)
        if shape is None:
            position = rule.dim
            if position is None:
                matrix = self._dimensions(placed, PLAIN, "weight", (0,) * len(rule.dims or "ab"))
                position = self._position(placed, "weight", matrix)
            divisor, label = stored.block(tag.dimension or "")
            full = self._full(stored, tag.dimension or "")
            return Sharing(position, parts, interleaved, blocks, divisor, label=label or BLOCK, full=full)
        dimensions = self._dimensions(placed, stored, parameter, shape)
        position = self._position(placed, parameter, dimensions)
        if position is None:
            self._check_sizes(placed, binding, shape, dimensions)
            return Sharing()
        _, divisor, times, whole, label = dimensions[position]
        bits = across_bytes(dtype, shape, position)
        full = bool(known) and self._full(stored, tag.dimension or "")
        sharing = Sharing(position, parts, interleaved, blocks, divisor, times, label or BLOCK, bits, full)
        if shape[position] != sharing.size:
            terms = " + ".join(f"{part.units} × {part.width}" for part in parts)
            repeated = f"{blocks} × ({terms})" if blocks > 1 else terms
            dimension = dimensions[position]
            raise RuleError(
                f"shape {list(shape)} has {shape[position]} in dimension {position}, but config.json "
                f"makes it {sharing.size} ({repeated} of {rule.described()}{_in_blocks(dimension)})",
                _other_rule(placed, shape, position, sharing.size) or _own_config(dimension),
            )
        self._check_sizes(placed, binding, shape, dimensions, position)
        return Sharing() if whole else sharing

    def _full(self, stored: Stored, dimension: str) -> bool:
        """See Sharing. Raises RuleError where padding needs zeros that cannot be stored."""
        full = stored.lacks_zeros(dimension)
        if full and dimension == "out" and self.scope.pad:
            raise RuleError(
                "one scale is for all rows, and zeros stored here are other values: nothing can fill it up",
                "pad the checkpoint that it was quantized from",
            )
        return full

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

    def _dimensions(
        self, placed: PlacedRule, stored: Stored, parameter: str, shape: tuple[int, ...]
    ) -> tuple[Dimension, ...]:
        dimensions = dimensions_of(placed.rule, stored, parameter, shape)
        if len(dimensions) != len(shape):
            named = ", ".join(dimension.name for dimension in dimensions)
            raise RuleError(f"has {len(shape)} dimensions, not the {len(dimensions)} of [{named}]")
        return dimensions

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

    def _check_sizes(
        self,
        placed: PlacedRule,
        binding: Mapping[str, int],
        shape: tuple[int, ...],
        dimensions: tuple[Dimension, ...],
        position: int | None = None,
    ) -> None:
        """The dimensions that are not cut are the residual stream's, or what `in`, `out` and `dims` say."""
        rule = placed.rule
        plain_matrix = len(shape) == 2 and rule.dim is None
        for other, dimension in enumerate(dimensions):
            name = dimension.name
            said = rule.in_ or rule.out or rule.dims or rule.shape
            if other == position or not (name not in ("in", "out") or said or plain_matrix):
                continue
            size = self.size(placed, binding, name)
            if size is not None and shape[other] != dimension.stored(size.number):
                raise RuleError(
                    f"shape {list(shape)} has {shape[other]} in dimension {other}, but config.json makes it "
                    f"{dimension.stored(size.number)} ({size.source}{_in_blocks(dimension)})",
                    _own_config(dimension),
                )

    def size(self, placed: PlacedRule, binding: Mapping[str, int], name: str) -> Size | None:
        """The size of a dimension that is not cut, undivided; None where the spec does not say it."""
        rule = placed.rule
        if name.isdecimal():
            return Size(int(name), name)
        if name in ("in", "out"):
            said = rule.out if name == "out" else rule.in_
            if rule.shape and len(rule.shape) == 2:
                said = rule.shape[(name == "in") == (rule.layout == "out-in")]
            expression = said or self.scope.spec.hidden
        elif name in self.scope.spec.ranges and name not in binding:
            return Size(len(self.scope.range(name)), str(self.scope.spec.ranges[name][-1]))
        else:
            expression = next((size for size in rule.sizes if size.text == name), None)
        return None if expression is None else Size(self.scope.count(expression, binding), str(expression))


def _in_blocks(dimension: Dimension) -> str:
    return f", in blocks of {dimension.divisor}" if dimension.divisor > 1 else ""


def _own_config(dimension: Dimension) -> str:
    """What to ask where a size is not what the config makes it, by its settings of quantization too."""
    setting = f" ({dimension.label} = {dimension.divisor})" if dimension.label else ""
    return f"{OWN_CONFIG}{setting}"


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
