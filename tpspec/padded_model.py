"""A padded model as an ordinary checkpoint: its config, and how each of its tensors is made.

Which architecture it may be written as is data, `specs/padded/architectures.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import Field, ValidationError

from tpspec import cuts
from tpspec.checkpoint import Checkpoint, StoredTensor
from tpspec.errors import Finding, TpspecError
from tpspec.language.patterns import compile_pattern
from tpspec.language.registry import BUILT_IN
from tpspec.language.schema import Expr, Name, Names, Strict
from tpspec.language.yaml_source import read_document
from tpspec.layout import Cut, Segment, whole
from tpspec.resolution import Resolution, Shared
from tpspec.scope import ConfigScope

TABLE = "padded/architectures.yaml"


class Architecture(Strict):
    """One entry of the table; see there."""

    model_types: tuple[Name, ...]
    config: dict[Name, Expr]
    write: dict[Name, Any] = Field(default_factory=dict)
    leave_out: tuple[Name, ...] = ()
    refuse: dict[str, Expr] = Field(default_factory=dict)
    zeros: dict[Names, Names] = Field(default_factory=dict)


class _Table(Strict):
    architectures: tuple[Architecture, ...]


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """A tensor of the padded model, made of a stored one: the share of the one rank of `cut`."""

    name: str
    stored: StoredTensor
    cut: Cut


@dataclass(frozen=True)
class PaddedModel:
    """A model that needs no padding at `tp`: the text of its config.json, and its tensors in file order."""

    tp: int
    config: bytes
    tensors: tuple[PaddedTensor, ...]
    left_out: tuple[str, ...]


@cache
def architectures() -> Mapping[str, Architecture]:
    """Model type → how its padded models are written."""
    where = f"specs/{TABLE}"
    try:
        table = _Table.model_validate(read_document(BUILT_IN / TABLE, where).data)
    except ValidationError as error:
        raise TpspecError(f"{where} is not valid: {error}") from None
    return {kind: entry for entry in table.architectures for kind in entry.model_types}


def padded_model(checkpoint: Checkpoint, resolution: Resolution, tp: int) -> PaddedModel:
    """The padded model of a checkpoint, whose `resolution` is one with padding.

    Raises TpspecError where nothing has to be padded, or no architecture can say what was.
    """
    resolution.check(tp)
    config = checkpoint.config
    entry = _architecture(config, resolution, tp)
    scope = resolution.scope(tp)
    kept = [item for item in resolution.shared if not item.sharing.apart]
    tensors = {tensor.name: tensor for tensor in (_tensor(item, tp) for item in kept)}
    for zeros in _zeros(entry, scope, tensors):
        tensors[zeros.name] = zeros
    written = {key: value for key, value in config.items() if key not in entry.leave_out}
    written |= {key: scope.evaluate(value) for key, value in entry.config.items()} | entry.write
    apart = [item.tensor.name for item in resolution.shared if item.tensor and item.sharing.apart]
    text = json.dumps(written, indent=2, ensure_ascii=False).encode() + b"\n"
    return PaddedModel(tp, text, tuple(tensors.values()), (*apart, *resolution.ignored))


def _architecture(config: Mapping[str, Any], resolution: Resolution, tp: int) -> Architecture:
    """The entry for a model. Raises TpspecError with every reason why there is none."""
    kind = str(config.get("model_type"))
    known = architectures()
    message = f"a padded '{kind}' model cannot be written as an ordinary checkpoint"
    remedy = "tpspec convert --pad cuts it for tpspec run, whatever its architecture"
    if kind not in known:
        problem = f"no architecture is known that could say how it was padded; known: {', '.join(known)}"
        raise TpspecError(message, [Finding("model_type", problem, f"specs/{TABLE}")], remedy)
    scope, entry = resolution.scope(tp), known[kind]
    if config.get("quantization_config"):
        raise TpspecError(message, [Finding("quantization_config", "its weights are quantized")], remedy)
    findings = [
        Finding("config.json", f"{reason} ({condition})", f"specs/{TABLE}")
        for reason, condition in entry.refuse.items()
        if scope.evaluate(condition)
    ]
    if findings:
        raise TpspecError(message, findings, remedy)
    return entry


def _tensor(item: Shared, tp: int) -> PaddedTensor:
    """A stored tensor with all ranks' units, zeros and copies of KV heads included, in their order."""
    assert item.tensor is not None
    sharing = item.sharing
    cut = whole(1)
    if sharing.dim is not None and item.placed.rule.tag != "vocab":
        cut = cuts.joined(
            sharing.dim, sharing.parts, tp, interleaved=sharing.interleaved, blocks=sharing.blocks
        )
    return PaddedTensor(item.tensor.name, item.tensor, cut)


def _zeros(
    entry: Architecture, scope: ConfigScope, tensors: Mapping[str, PaddedTensor]
) -> Iterator[PaddedTensor]:
    """Tensors that the architecture has and the model does not, each beside the one that it is like."""
    for template, like in entry.zeros.items():
        pattern, model = compile_pattern(template), compile_pattern(like)
        for binding in scope.bindings(pattern.variables):
            stored = tensors[model.name(binding)].stored
            size = stored.shape[0]
            yield PaddedTensor(pattern.name(binding), stored, Cut(0, size, ((Segment(None, size),),)))
