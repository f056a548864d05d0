"""The shapes in which a module's tensors are stored, from the spec and the config alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tpspec.dimensions import dimensions_of
from tpspec.dtypes import nbytes
from tpspec.language.spec import PlacedRule
from tpspec.language.tags import TAGS
from tpspec.rules import Rules
from tpspec.safetensors_header import StoredTensor
from tpspec.stored import Dimension, Stored, weight_dimensions

Binding = Mapping[str, int]


def parameters(rules: Rules, placed: PlacedRule, binding: Binding) -> Iterator[str]:
    """The tensors that a module is stored as. A bare parameter counts as its own weight."""
    stored = rules.storage.told(placed, binding)
    yield from stored.needed if stored.quantized else ("weight",)
    if placed.rule.bias is not None and rules.scope.evaluate(placed.rule.bias, binding):
        yield "bias"


def declared(name: str, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
    """A tensor that a spec says a checkpoint has; it is in no file."""
    return StoredTensor(name, dtype, shape, "", 0, nbytes(dtype, shape))


def stored_shape(
    rules: Rules, placed: PlacedRule, binding: Binding, parameter: str
) -> tuple[int, ...] | None:
    """The shape of one of a module's tensors; None where the spec does not say it.

    Raises RuleError and ExpressionError where rule and config do not fit.
    """
    rule = placed.rule
    if rule.shape is not None and parameter == "weight" and not rules.storage.told(placed, binding).quantized:
        return tuple(rules.scope.count(size, binding, least=0) for size in rule.shape)
    dimensions = _dimensions(rules.storage.told(placed, binding), placed, parameter)
    if dimensions is None:
        return None
    sizes = [(dimension, _size(rules, placed, binding, dimension.name)) for dimension in dimensions]
    shape = tuple(dimension.stored(size) for dimension, size in sizes if size is not None)
    return shape if len(shape) == len(sizes) else None


def stored_dtype(rules: Rules, placed: PlacedRule, binding: Binding, parameter: str, usual: str) -> str:
    """The element type of one of a module's tensors, as safetensors calls it; `usual` for any float."""
    known = rules.storage.told(placed, binding).parameters.get(parameter)
    return known.dtypes[0] if known and known.dtypes else usual


def _dimensions(stored: Stored, placed: PlacedRule, parameter: str) -> tuple[Dimension, ...] | None:
    rule = placed.rule
    if stored.quantized or parameter == "bias":
        return dimensions_of(rule, stored, parameter)
    if rule.dims:
        return tuple(map(Dimension, rule.dims))
    if rule.norm:
        return (Dimension("out"),)
    if TAGS[rule.tag].cuts and rule.dim is None:
        return weight_dimensions(2, in_out=rule.layout == "in-out")
    return None


def _size(rules: Rules, placed: PlacedRule, binding: Binding, name: str) -> int | None:
    rule = placed.rule
    if rule.shape and name in ("in", "out"):
        out_in = rule.shape if rule.layout == "out-in" else tuple(reversed(rule.shape))
        return rules.scope.count(out_in[0 if name == "out" else 1], binding)
    if name == TAGS[rule.tag].dimension:
        return rules.sharing(placed, binding, "weight", None).total
    size = rules.size(placed, binding, name)
    return size and size.number
