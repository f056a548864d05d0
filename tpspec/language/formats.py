"""What a file of specs/quant may say: how a quantized module's tensors follow from its `in` and `out`."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from tpspec.errors import TpspecError
from tpspec.language.expressions import parse
from tpspec.language.registry import BUILT_IN
from tpspec.language.schema import Expr, Name, Strict
from tpspec.language.yaml_source import read_document

_DIMENSION = re.compile(r"(?:(?P<times>.+?)\s*\*\s*)?(?P<name>in|out)(?:\s*/\s*(?P<divisor>.+))?")


class StoredDimension(Strict):
    """`in` or `out`, counted in divisors and as often in each; or a number."""

    name: Name
    divisor: Expr | None = None
    times: Expr | None = None


def _as_dimension(value: Any) -> Any:
    match = _DIMENSION.fullmatch(str(value))
    if match:
        return {
            "name": match["name"],
            **{k: v and parse(v) for k, v in match.groupdict().items() if k != "name"},
        }
    if not str(value).isdecimal():
        raise ValueError(
            f"a dimension is `in`, `out`, either of them `/ N` or `N * … / N`, or a number, not {value!r}"
        )
    return {"name": str(value)}


Dimensions = tuple[
    Annotated[StoredDimension, BeforeValidator(_as_dimension, json_schema_input_type=str | int)], ...
]
Names = Annotated[
    tuple[Name, ...],
    BeforeValidator(lambda v: [v] if isinstance(v, str) else v, json_schema_input_type=Name | list[Name]),
]


class StoredParameter(Strict):
    """One tensor of a quantized module."""

    dims: Dimensions
    """Its dimensions; none for a scalar, which may also be stored as [1]."""
    alternatives: tuple[Dimensions, ...] = Field((), alias="or")
    """What its dimensions may be in other checkpoints; their shapes tell which."""
    dtype: Names = ()
    """Its element type as safetensors calls it, the usual one first; any floating-point type, if unsaid."""
    when: Expr | None = None
    """The condition under which this holds; of several entries the first fits whose condition holds."""
    optional: Expr | None = None
    """Whether a checkpoint may leave it out; not, if unsaid."""
    whole: Literal["in", "out"] | None = None
    """The dimension whose cut leaves this tensor whole (scales under GPTQ's activation order)."""
    also: Names = ()
    """Other names for it."""
    holds: Literal["groups", "shape"] | None = None
    """What its numbers are, where not the weight's: the group of each input, or the matrix's shape."""


def _as_parameters(value: Any) -> Any:
    if isinstance(value, list) and not any(isinstance(item, dict) for item in value):
        return [{"dims": value}]
    return value if isinstance(value, list) else [value]


class Storage(Strict):
    """One way in which a format stores a module."""

    when: Expr | None = None
    """The condition over the module's settings under which it is stored so."""
    values: Literal["scaled", "packed", "gptq", "awq", "fp4"] | None = None
    """How the weight's values come out of them; the module is stored plainly, if unsaid."""
    offset: Expr | None = None
    """Whether stored zeros are other values than zero, unless their scale is zero; not, if unsaid."""
    parameters: dict[
        Name,
        Annotated[
            tuple[StoredParameter, ...],
            BeforeValidator(
                _as_parameters,
                json_schema_input_type=StoredParameter | list[str | int] | list[StoredParameter],
            ),
        ],
    ] = Field(default_factory=dict)
    """Stored tensor → its dimensions."""


Kind = Literal["flag", "count", "group", "pair"]
"""What a setting is: true or false, a positive count, a count or -1 (one group), two counts."""


class Refusal(Strict):
    """What a format has that cannot be cut."""

    when: Expr
    """The condition over the settings."""
    because: Name
    """Why it cannot be cut."""
    remedy: Name
    """What can be done."""


class Overrides(Strict):
    """Where the settings name modules that are stored otherwise than the others."""

    groups: Expr | None = None
    """Settings by group, each with the modules or classes that it is for (compressed-tensors)."""
    dynamic: Expr | None = None
    """Settings by regular expression; one that begins with `-:` keeps modules plain (GPTQ)."""
    layers: Expr | None = None
    """Settings by module; a module that is not among them is plain (ModelOpt)."""
    exact: Expr | None = None
    """Settings by module; a module that is not among them is as all others (AutoRound)."""


class Plain(Strict):
    """Where the settings name modules that stay as they are."""

    modules: Expr | None = None
    """Modules or what is above them, regular expressions, ends of names: as transformers reads such lists."""
    targets: Expr | None = None
    """A module's name, `re:` and a regular expression, or a class."""
    globs: Expr | None = None
    """Names with `*`; what is below a module that is named stays plain with it."""
    contains: Expr | None = None
    """Pieces of names."""
    outside: Expr | None = None
    """Pieces of the names of those that are quantized: all others stay plain."""


class FormatDocument(Strict):
    """One file of specs/quant. Its expressions read the settings in config.json's `quantization_config`."""

    format: Name
    """The format's name, that of its file."""
    detect: Expr
    """The condition under which a checkpoint is stored so."""
    kinds: dict[Name, Kind] = Field(default_factory=dict)
    """What settings are where they are there; any other value is refused."""
    let: dict[Name, Expr] = Field(default_factory=dict)
    """Names for what the settings come to, for one module."""
    plain: Plain = Plain()
    """Which modules stay plain."""
    overrides: Overrides = Overrides()
    """Which modules have settings of their own."""
    head: Expr | None = None
    """Whether the head is quantized where the settings do not name it; not, if unsaid."""
    zero_biases: bool = False
    """Whether modules without a bias may have one of zeros stored with them."""
    scalars: Names = ()
    """Scalars that may belong to any module (scales of the KV cache): whole on every rank."""
    refuse: tuple[Refusal, ...] = ()
    layouts: tuple[Storage, ...] = ()
    """The ways in which a module may be stored; the first whose condition holds is its own."""


@cache
def format_documents() -> tuple[FormatDocument, ...]:
    """Every format that there is, by name."""
    documents = []
    for path in sorted((BUILT_IN / "quant").glob("*.yaml")):
        where = f"specs/quant/{path.name}"
        try:
            documents.append(FormatDocument.model_validate(read_document(path, where).data))
        except ValidationError as error:
            raise TpspecError(f"{where} is not a valid format: {error}") from None
    return tuple(documents)
