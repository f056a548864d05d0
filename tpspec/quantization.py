"""Stored formats: which tensors a linear is stored as, and how their dimensions follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from tpspec.errors import TpspecError
from tpspec.language.expressions import Expression, ExpressionError, parse
from tpspec.language.registry import BUILT_IN
from tpspec.language.schema import Expr, Name, Strict
from tpspec.language.yaml_source import read_document


class Dimension(NamedTuple):
    """A stored dimension: `out`, `in`, a range's name or another label, counted in `divisor`s."""

    name: str
    divisor: int = 1


class _StoredDimension(Strict):
    name: Name
    divisor: Expr | None = None


def _parse_dimension(value: Any) -> Any:
    if isinstance(value, str):
        name, slash, divisor = value.partition("/")
        return {"name": name.strip(), "divisor": parse(divisor) if slash else None}
    return {"name": str(value)}


class FormatDocument(Strict):
    """One file of specs/quant."""

    format: Name
    detect: Expr
    """The condition over config.json under which a checkpoint is stored so."""
    let: dict[Name, Expr] = Field(default_factory=dict)
    parameters: dict[
        Name,
        tuple[
            Annotated[_StoredDimension, BeforeValidator(_parse_dimension, json_schema_input_type=str | int)],
            ...,
        ],
    ]
    """Stored tensor → its dimensions: `out`, `in`, either divided, or a number."""


@dataclass(frozen=True)
class Format:
    """A stored format for one config. `parameters` gives each tensor's dimensions."""

    name: str
    parameters: Mapping[str, tuple[Dimension, ...]]

    def dimensions(self, parameter: str, ndim: int, *, in_out: bool) -> tuple[Dimension, ...]:
        """What each dimension of a module's tensor is."""
        if parameter == "weight" and "weight" not in self.parameters:
            return weight_dimensions(ndim, in_out=in_out)
        return self.parameters[parameter]


def weight_dimensions(ndim: int, *, in_out: bool = False) -> tuple[Dimension, ...]:
    """A plain weight's dimensions: [out, in], or for a convolution [out, in, …]."""
    names = ("in", "out") if in_out and ndim == 2 else ("out", "in")
    rest = tuple(f"dim{i}" for i in range(2, ndim))
    return tuple(Dimension(name) for name in (*names, *rest)[:ndim])


PLAIN = Format("plain", {"bias": (Dimension("out"),)})


@cache
def _documents() -> tuple[FormatDocument, ...]:
    documents = []
    for path in sorted((BUILT_IN / "quant").glob("*.yaml")):
        where = f"specs/quant/{path.name}"
        try:
            documents.append(FormatDocument.model_validate(read_document(path, where).data))
        except ValidationError as error:
            raise TpspecError(f"{where} is not a valid format: {error}") from None
    return tuple(documents)


def detect_format(config: Mapping[str, Any]) -> Format:
    """The format that config.json says the checkpoint is stored in.

    Raises TpspecError for a quantization that no format describes: its scales and packed weights
    would be cut wrongly.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return PLAIN
    scope = _FormatScope(config, {})
    try:
        for document in _documents():
            if document.detect.evaluate(scope):
                return _for_config(document, config)
    except ExpressionError as error:
        raise TpspecError(f"config.json: quantization_config cannot be read: {error}") from None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    known = ", ".join(document.format for document in _documents())
    raise TpspecError(
        f"config.json: no format describes checkpoints quantized by '{method}' (known: {known})",
        remedy="dequantize the checkpoint first, or convert the unquantized one",
    )


def _for_config(document: FormatDocument, config: Mapping[str, Any]) -> Format:
    scope = _FormatScope(config, document.let)
    parameters = dict(PLAIN.parameters)
    for name, dimensions in document.parameters.items():
        parameters[name] = tuple(
            Dimension(d.name, d.divisor.count(scope) if d.divisor else 1) for d in dimensions
        )
    return Format(document.format, parameters)


class _FormatScope:
    def __init__(self, config: Mapping[str, Any], let: Mapping[str, Expression]) -> None:
        self.config = config
        self.let = let

    def lookup(self, name: str) -> Any:
        return (
            self.let[name].evaluate(_FormatScope(self.config, {}))
            if name in self.let
            else self.config.get(name)
        )

    def local(self, axis: str) -> int:
        raise ExpressionError(f"local({axis}) has no meaning in a format")
