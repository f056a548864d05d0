"""What a file of specs/engines may say, as frozen pydantic models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tpspec.language.formats import Refusal
from tpspec.language.patterns import compile_pattern, expand
from tpspec.language.schema import Expr, Name, Strict

EngineName = Literal["vllm", "sglang"]
PARAMETER = "{parameter}"
"""Where an engine's name carries the tensor's name within its module elsewhere than at the end."""


def _templates(text: str) -> str:
    for name in expand(text.replace(PARAMETER, "parameter")):
        compile_pattern(name)
    return text


Template = Annotated[Name, AfterValidator(_templates)]
"""The name of a module or a bare parameter: alternatives and ranges in braces, as in a spec."""


class Tensors(Strict):
    """What an engine makes of some modules or bare parameters."""

    of: Template | None = None
    """The spec's names, in the order in which the engine joins them; the engine's own, if unsaid."""
    when: Expr | None = None
    """The models that the entry is about: a condition over config.json; all, if unsaid."""
    whole: Literal[True] | None = None
    """Whole on every rank, though the spec cuts it."""
    separate: Literal[True] | None = None
    """Parts that the checkpoint interleaves stand one after another: all q, then all k, then all v."""
    transpose: Literal[True] | None = None
    """Matrices that the checkpoint stores [in, out] are [out, in]."""
    drop: Literal[True] | None = None
    """The engine has no such tensor."""


TensorsOrNames = Annotated[
    Tensors,
    BeforeValidator(lambda v: {"of": v} if isinstance(v, str) else v, json_schema_input_type=Tensors | str),
]


class Family(Strict):
    """Model classes that an engine lays out alike. What no entry names keeps its name and its cut."""

    classes: dict[Name, Name] = Field(default_factory=dict)
    """What config.json's `architectures` calls them → the model type whose tensors they have; none for a base
    that others extend."""
    extends: Name | None = None
    """The family whose entries these change or add to; null takes an inherited one away."""
    prefix: str | None = None
    """What every name begins with, but for the head's."""
    rename: dict[Name, str] = Field(default_factory=dict)
    """Word of a name → the engine's, once everything else is said; words stand between dots."""
    tied: Literal["head", "embedding"] | None = None
    """Under which name the one matrix of a tied model is kept: the head's, if unsaid."""
    fits: Expr | None = None
    """The sizes that the engine takes: a condition over config.json and tp; the spec's, if unsaid."""
    attention: Template | None = None
    """The module of each layer that holds the scales of its cache; null takes an inherited one away."""
    latent: Literal[True] | None = None
    """A cache that quantization has no scales for."""
    tensors: dict[Template, TensorsOrNames | None] = Field(default_factory=dict)
    """The engine's name → what it is made of."""


class Scalar(Strict):
    """A number that no checkpoint has, and the engine's files have."""

    value: float
    dtype: Literal["F32", "model"] = "F32"
    """float32, or the type of the model's activations."""
    shape: tuple[int, ...] = ()


ScalarOrValue = Annotated[
    Scalar,
    BeforeValidator(
        lambda v: v if isinstance(v, dict) else {"value": v}, json_schema_input_type=Scalar | float
    ),
]


Release = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]


class Quantized(Strict):
    """How the engine keeps matrices that are stored quantized, before it post-processes them."""

    when: Expr
    """The models that this is about: a condition over config.json."""
    since: Release | None = None
    """The first release of which this is known; that of the file, if unsaid."""
    refuse: tuple[Refusal, ...] = ()
    """What of it the engine does not load."""
    scales: dict[Name, ScalarOrValue] = Field(default_factory=dict)
    """Scalars that every attention layer holds besides."""
    vectors: tuple[Name, ...] = ()
    """Tensors of one number for each matrix: those of matrices that are joined make a vector."""
    side_by_side: tuple[Name, ...] = ()
    """Tensors whose last dimension counts outputs: those of matrices that are joined stand side by side."""
    last: tuple[Name, ...] = ()
    """Tensors of which matrices that are joined have that of the last one."""
    drop: tuple[Name, ...] = ()
    """Tensors that the engine has not."""
    unknown: tuple[Name, ...] = ()
    """Tensors of which it is not known what the engine makes: with them a model is refused."""
    experts: Expr | None = None
    """Whether it is known for stacked experts too: a condition over config.json; yes, if unsaid."""


class Version(Strict):
    """What releases had otherwise until one."""

    before: Release
    """The first release that has what the file says."""
    rename: dict[Name, str] = Field(default_factory=dict)
    """Piece of a name → what it was; one after another."""
    families: dict[Name, Family] = Field(default_factory=dict)
    """What stands in the place of a family; one that extends its own name changes what it became."""


class EngineDocument(Strict):
    """One file of specs/engines."""

    engine: EngineName
    """The engine's name, that of its file."""
    title: Name
    """How people write the engine's name."""
    compared_with: Name
    """The release that the names were read from."""
    since: Release | None = None
    """The first release whose names are known; the one compared with, if unsaid."""
    serve: Name
    """The command that serves an export: {out} and {tp} are filled in."""
    vocabulary: Annotated[int, Field(ge=1)]
    """Rows to a multiple of which a vocabulary is filled up before it is divided."""
    scales: dict[Name, ScalarOrValue] = Field(default_factory=dict)
    """Scalars that every attention layer holds besides."""
    quantized: tuple[Quantized, ...] = ()
    """What is known of quantized models; the others are refused."""
    versions: tuple[Version, ...] = ()
    """Releases before which names were others, the latest first: each adds to those before it."""
    families: dict[Name, Family]
    left_out: dict[Name, Name] = Field(default_factory=dict)
    """Model classes that are not exported → why."""

    @model_validator(mode="after")
    def _known_bases(self) -> EngineDocument:
        seen: dict[str, str] = {}
        for name, family in self.families.items():
            if family.extends is not None and family.extends not in self.families:
                raise ValueError(f"{name} extends {family.extends}, which is not here")
            for cls in family.classes:
                if cls in seen:
                    raise ValueError(f"{cls} is claimed by {seen[cls]} and {name}")
                seen[cls] = name
        return self

    @model_validator(mode="after")
    def _known_changes(self) -> EngineDocument:
        for version in self.versions:
            for name, family in version.families.items():
                if name not in self.families:
                    raise ValueError(f"{name} was otherwise before {version.before}, but is not here")
                if family.classes:
                    raise ValueError(
                        f"{name} before {version.before} names classes, which are those of {name}"
                    )
                if family.extends is not None and family.extends not in self.families:
                    raise ValueError(
                        f"{name} before {version.before} extends {family.extends}, which is not here"
                    )
        return self
