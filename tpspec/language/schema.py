"""What a spec file may say: the YAML's keys and values as frozen pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from tpspec.language.expressions import Expression, parse
from tpspec.language.patterns import compile_pattern, expand
from tpspec.language.tags import TAGS

VERSION = 1

Expr = Annotated[Expression, PlainValidator(parse, json_schema_input_type=str | int | float | bool)]
"""An expression over config names, written as text or as a number."""

Name = Annotated[str, Field(min_length=1, max_length=200)]


def _expands(text: str) -> str:
    for name in expand(text):
        compile_pattern(name)
    return text


Names = Annotated[Name, AfterValidator(_expands)]
"""Names of modules or tensors: alternatives and ranges in braces."""


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class Strict(BaseModel):
    """Frozen; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Axis(Strict):
    """Something that may be cut, in whole units of `width` indices."""

    units: Expr
    """How many units there are."""
    width: Expr | None = None
    """Rows or columns of one unit; one, if unsaid."""
    replicate: bool = False
    """Whether units are copied once there are more ranks than units (KV heads)."""
    groups: Name | None = None
    """The axis whose units share one unit of this one (query heads per KV head)."""
    real: Expr | None = None
    """The size without the padded rows that the config counts (a vocabulary's)."""


class Part(Strict):
    """One part of a fused matrix: an axis, or `replicated` rows that every rank holds."""

    axis: Name
    """The axis that the part is made of, or `replicated`."""
    width: Expr | None = None
    """Rows of one unit where they differ from the axis's; all rows of a replicated part."""


def _as_part(value: Any) -> Any:
    return {"axis": value} if isinstance(value, str) else value


PartOrName = Annotated[Part, BeforeValidator(_as_part, json_schema_input_type=Part | str)]
Parts = Annotated[
    tuple[PartOrName, ...],
    BeforeValidator(_as_list, json_schema_input_type=Name | Part | list[Name | Part]),
    Field(min_length=1, max_length=64),
]
OnePart = Annotated[
    tuple[PartOrName, ...],
    BeforeValidator(_as_list, json_schema_input_type=Name | Part),
    Field(min_length=1, max_length=1),
]
Exprs = Annotated[
    tuple[Expr, ...],
    BeforeValidator(_as_list, json_schema_input_type=str | int | list[str | int]),
    Field(min_length=1, max_length=64),
]


def _as_dimension(value: Any) -> Any:
    text = str(value) if isinstance(value, int) else value
    if isinstance(text, str) and text not in ("in", "out"):
        parse(text)
    return text


Dim = Annotated[Name, BeforeValidator(_as_dimension, json_schema_input_type=str | int)]
Shape = Annotated[
    Literal[True] | Annotated[tuple[Expr, ...], Field(max_length=8)],
    BeforeValidator(
        lambda v: v if v is True else _as_list(v), json_schema_input_type=bool | str | int | list[str | int]
    ),
]


class Norm(Strict):
    """A norm over the sharded width: its statistics are all-reduced."""

    kind: Literal["rms", "layer"]
    """An RMS norm, or a layer norm, which subtracts the mean."""
    groups: Name | None = None
    """The axis whose units are normalised each on its own (Mamba-2's groups)."""
    gate: Literal["silu", "sigmoid"] | None = None
    """The activation of the gate that multiplies the input before the statistics."""


class Rule(Strict):
    """How the tensors of one module, or one bare parameter, are cut: a tag and its modifiers."""

    column: OnePart | None = None
    """Cut the output dimension in whole units of the axis."""
    row: OnePart | None = None
    """Cut the input dimension; partial sums are all-reduced, and rank 0 alone keeps the bias."""
    qkv_head: Parts | None = Field(None, alias="qkv-head")
    """Cut the output dimension in whole heads; of a fused matrix ([q, kv, kv]), each part on its own."""
    merged: Parts | None = None
    """Several column-parallel matrices stacked ([ffn, ffn]): each part is cut on its own."""
    vocab: OnePart | None = None
    """Cut the rows of an embedding or a head, filled up with zeros to a multiple of tp."""
    select: Name | None = None
    """Tensors whose names carry the unit of this axis: a rank holds those of its own units."""
    once: Literal[True] | None = None
    """Rank 0 holds the tensor, or gives the module's output, and the others zeros: a sum counts it once."""
    replicated: Shape | None = None
    """Whole on every rank; an expression, or a list of them, says the shape that the weight has to have."""
    drop: Literal[True] | None = None
    """On no rank: a subtree that is not served. Merging keeps it."""
    unused: Literal[True] | None = None
    """On no rank: stored, but no module of the model reads it. Merging keeps it."""

    interleaved: Name | None = None
    """The axis whose units are stored one after another, each with its piece of every part."""
    blocks: Expr | None = None
    """This many equal blocks, each cut on its own."""
    width: Exprs | None = None
    """Unit widths where they differ from the axes': one for all parts, or one per part."""
    layout: Literal["out-in", "in-out"] = "out-in"
    """How a two-dimensional weight is stored (GPT-2's Conv1D: in-out)."""
    dims: Annotated[tuple[Dim, ...], Field(min_length=1, max_length=8)] | None = None
    """What each stored dimension is: `in`, `out`, a range such as `expert`, or a size."""
    dim: Annotated[int, Field(ge=0)] | None = None
    """The dimension of a bare parameter that is cut, where it is not the first."""
    in_: Expr | None = Field(None, alias="in")
    """Input width of the matrix where it is not `hidden`."""
    out: Expr | None = None
    """Output width of a row-parallel matrix where it is not `hidden`."""
    bias: Expr | None = None
    """Whether the checkpoint stores a bias; unsaid, both are fine."""
    when: Expr | None = None
    """The condition, over ranges and config names, under which the rule applies."""
    optional: Literal[True] | Expr | None = None
    """Whether, or where, the checkpoint may leave the tensors out (a block that an earlier layer stores)."""
    head: bool = False
    """The module gives the logits; so does, unsaid, one that is tied to an embedding."""
    tied_to: Names | None = None
    """The module whose weight this one shares when `tie_word_embeddings` is set."""
    gather: bool = False
    """All-gather after a column cut."""
    gather_at: Name | None = None
    """The module after which the all-gather runs, where the model holds what is cut in another."""
    reduce_at: Names | None = None
    """The enclosing module after which the all-reduce runs, in place of right here."""
    reduce_with: Names | None = None
    """The sibling to whose partial sum this one (with `reduce_at`, the block's) is added before the one
    all-reduce of both."""
    reduce_before: Names | None = None
    """The module before which the all-reduce runs."""
    norm: Norm | None = None
    """The module is a norm over the sharded width: its statistics are all-reduced."""
    runs: Expr | None = None
    """How often the module runs in a forward pass on text alone, where not once."""

    @model_validator(mode="before")
    @classmethod
    def _tag_by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in ("replicated", "drop", "once", "unused"):
                raise ValueError(
                    f"'{value}' needs what it cuts; by name alone stand replicated, drop, once, unused"
                )
            return {value: True}
        return value

    @model_validator(mode="after")
    def _one_tag(self) -> Rule:
        given = [name for name in TAGS if getattr(self, name.replace("-", "_")) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a rule has one tag of {', '.join(TAGS)}; this one has {' and '.join(given) or 'none'}"
            )
        tag = TAGS[given[0]]
        wrong = [name for name in _CUT_ONLY if getattr(self, name) and not tag.cuts]
        wrong += [name for name in _ROW_ONLY if getattr(self, name) and tag.name not in ("row", "once")]
        if wrong:
            raise ValueError(f"'{wrong[0]}' does not go with '{tag.name}'")
        if self.reduce_at and self.reduce_before:
            raise ValueError("'reduce_at' and 'reduce_before' name two places for one sum")
        if self.width and self.parts and len(self.width) not in (1, len(self.parts)):
            raise ValueError(f"{len(self.width)} widths for {len(self.parts)} parts")
        if self.dims is not None and tag.cuts and tag.dimension not in self.dims and self.dim is None:
            raise ValueError(f"'dims' does not name '{tag.dimension}', which '{tag.name}' cuts")
        return self

    @property
    def tag(self) -> str:
        """The name of the rule's tag."""
        return next(name for name in TAGS if getattr(self, name.replace("-", "_")) is not None)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a cutting tag cuts, part by part; empty for the others."""
        value = getattr(self, self.tag.replace("-", "_"))
        return value if TAGS[self.tag].cuts else ()

    @property
    def shape(self) -> tuple[Expression, ...] | None:
        """The size that a replicated tensor is said to have."""
        return None if self.replicated in (None, True) else self.replicated  # type: ignore[return-value]

    @property
    def sizes(self) -> tuple[Expression, ...]:
        """The sizes among `dims`, ranges included."""
        return tuple(parse(name) for name in self.dims or () if name not in ("in", "out"))

    def described(self) -> str:
        """The tag as the report shows it, e.g. `qkv-head q+kv+kv`."""
        return " ".join(filter(None, (self.tag, "+".join(part.axis for part in self.parts), self.select)))


_CUT_ONLY = ("interleaved", "blocks", "width", "norm", "gather", "gather_at")
_ROW_ONLY = ("reduce_at", "reduce_with", "reduce_before")

Rules = Annotated[
    tuple[Rule, ...],
    BeforeValidator(
        lambda v: [] if v is None else _as_list(v),
        json_schema_input_type=None | Literal["replicated", "drop", "once", "unused"] | Rule | list[Rule],
    ),
]


class Stack(Strict):
    """Tensors that memory holds as one: alternatives concatenated, the rows of a range stacked."""

    stack: Names
    """The stored names, with the range and the alternatives in braces."""
    over: Name | None = None
    """The range whose numbers become rows; without one, alternatives alone are concatenated."""
    flat: bool = False
    """Whether the rows of the range lie one after another along the first dimension, not along a new one."""
    into: Names
    """The parameter's name in memory."""
    offset: int = 0
    """What the numbers in `into` are more than the stored ones (queries.0 belongs to layer 1)."""
    apart: Annotated[int, Field(ge=0)] | None = None
    """The dimension along which gate and up are stored in turns, and lie one after the other in memory."""

    @property
    def stored(self) -> str:
        """The names on disk that the entry is about."""
        return self.stack


class Split(Strict):
    """A tensor that memory holds as several of one shape, which lie one after another in it."""

    split: Name
    """The stored name."""
    into: Names
    """The parameters' names in memory, alternatives in braces."""

    @property
    def stored(self) -> str:
        """The name on disk that the entry is about."""
        return self.split


class Rename(Strict):
    """A piece of the stored names that the model spells differently; alternatives go by their order."""

    rename: Name
    """The piece as the checkpoint has it."""
    to: Name
    """The piece as the model has it."""

    @model_validator(mode="after")
    def _in_pairs(self) -> Rename:
        stored, spelled = expand(self.rename), expand(self.to)
        if len(stored) != len(spelled):
            raise ValueError(f"{len(stored)} names are renamed to {len(spelled)}")
        return self

    @property
    def stored(self) -> str:
        """The piece of names on disk that the entry is about."""
        return self.rename

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Each stored piece with the model's."""
        return tuple(zip(expand(self.rename), expand(self.to), strict=True))


class CacheEntry(Strict):
    """Elements that a rank keeps for each layer's cache."""

    when: Expr | None = None
    """The layers that keep this; all, if unsaid."""
    per_token: Expr | None = None
    """Elements that one layer keeps on a rank for each token."""
    per_sequence: Expr | None = None
    """Elements that one layer keeps on a rank for each sequence, whatever its length."""
    window: Expr | None = None
    """Tokens after which a sliding window stops growing."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The element type of what is kept for a sequence, where the model's own does not matter."""

    @model_validator(mode="after")
    def _one_size(self) -> CacheEntry:
        if (self.per_token is None) == (self.per_sequence is None):
            raise ValueError("a cache entry has per_token or per_sequence")
        if self.dtype and self.per_sequence is None:
            raise ValueError("'dtype' goes with per_sequence: what grows with tokens has the cache's own")
        return self


class Slice(Strict):
    """A computed value that is cut along an axis, or as a module's weight is."""

    axis: Name | None = None
    """The axis whose units lie along the dimension, once or for each sequence of a batch."""
    like: Names | None = None
    """The template of a module; the value has what the cut dimension of its weight has."""
    dim: int = 0
    """The dimension that is cut."""

    @model_validator(mode="after")
    def _one_measure(self) -> Slice:
        if (self.axis is None) == (self.like is None):
            raise ValueError("a value is cut along an 'axis', or 'like' a module's weight")
        return self


class Runtime(Strict):
    """What a rank's model is told after it is built."""

    config: dict[Name, Expr | None] = {}
    """Values of the model's config as the rank has to see them."""
    attributes: dict[Names, dict[Name, Expr | None] | None] = {}
    """Attributes of modules, by the modules' names in memory."""
    slice: dict[Names, Slice] = {}
    """Results of a module's functions, or arguments of its forward, to cut (ALiBi), as MODULE.NAME."""
    buffers: dict[Names, Slice] = {}
    """Buffers that no file carries, to cut."""


class Prefix(Strict):
    """What a checkpoint puts before the names of a spec, or where they begin with `for` in its place."""

    stored: str
    """What the checkpoint's names begin with."""
    for_: str = Field(default="", alias="for")
    """What the spec's names begin with there; nothing, if unsaid."""

    def strip(self, stored: str) -> str | None:
        """The spec's name for a stored one; None where that begins otherwise."""
        return self.for_ + stored.removeprefix(self.stored) if stored.startswith(self.stored) else None

    def put(self, name: str) -> str:
        """The stored name for a spec's, which stays as it is where it begins otherwise."""
        return self.stored + name.removeprefix(self.for_) if name.startswith(self.for_) else name


NO_PREFIX = Prefix(stored="")


PrefixOrText = Annotated[
    Prefix,
    BeforeValidator(
        lambda v: {"stored": v} if isinstance(v, str) else v, json_schema_input_type=Prefix | str
    ),
]


class SpecDocument(Strict):
    """One spec file."""

    spec: Literal[1]
    """Version of the language."""
    architecture: Name
    """The spec's name, that of its file."""
    model_types: tuple[Name, ...] = ()
    """What config.json calls these models; none for a base that others extend."""
    extends: Annotated[
        tuple[Name, ...], BeforeValidator(_as_list, json_schema_input_type=Name | list[Name])
    ] = ()
    """Specs whose entries these change or add to; null takes an inherited entry away."""
    prefixes: Annotated[tuple[PrefixOrText, ...], Field(min_length=1)] | None = None
    """What may stand before every name, or replace its beginning; the checkpoint's own is detected."""
    let: dict[Name, Expr | None] = {}
    """Names that config.json may leave out, with the class's defaults."""
    per_layer: dict[Name, Expr | None] = {}
    """Names that are computed for each layer."""
    ranges: dict[
        Name,
        Annotated[
            tuple[Expr, ...],
            BeforeValidator(_as_list, json_schema_input_type=str | int | list[str | int]),
            Field(min_length=1, max_length=2),
        ]
        | None,
    ] = {}
    """Counts of what a name's braces stand for; a pair gives first and end."""
    active: dict[Name, Expr | None] = {}
    """How many of a range's numbers one token uses (of the experts, those that it is sent to)."""
    axes: dict[Name, Axis | None] = {}
    """What may be cut, in whole units."""
    hidden: Expr | None = None
    """Width of the residual stream: the dimension of a matrix that is not cut."""
    modules: dict[Name, Rules] = {}
    """A rule for each module or bare parameter, by its stored name; null takes an inherited one away."""
    one_of: dict[Name, dict[Name, dict[Name, Rules]]] = {}
    """Groups of rules for checkpoints published in several forms; exactly one form matches."""
    ignore: tuple[Name, ...] = ()
    """Stored buffers that no rank needs, as shell patterns."""
    memory: tuple[Stack | Split | Rename, ...] = ()
    """Where names in memory differ from the stored ones; the bases' entries come after."""
    cache: tuple[CacheEntry, ...] | None = None
    """What a rank keeps while it decodes."""
    runtime: Runtime = Runtime()
    """What a rank's model is told after it is built."""

    tiny: dict[Name, Any] = {}
    """Config values for a small model of this architecture, for proofs."""
    inputs: dict[Name, Exprs | None] = {}
    """What a proof gives the prompt beside its tokens (an image's states), by shape within a sequence."""
    model_class: Literal["text", "whole"] | None = Field(None, alias="class")
    """Whether the runtime builds the text model alone."""
    attention: Literal["eager", "sdpa"] | None = None
    """The attention code to run, where the usual one does not serve."""
    decode: Literal["cache", "own_cache", "cache_params", "full_ids", "none"] | None = None
    """How the model decodes, where it does not give back the usual cache: it is handed one (own_cache), has
    another name for it, is handed all tokens beside it (full_ids), or keeps none and reads all again."""
