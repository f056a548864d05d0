"""A padded model as an ordinary checkpoint: its config, and how each of its tensors is made.

Which architecture it may be written as is data, `specs/padded/architectures.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import Field, ValidationError

from tpspec.checkpoint import Checkpoint, StoredTensor
from tpspec.dtypes import nbytes
from tpspec.errors import Finding, TpspecError
from tpspec.language.patterns import compile_pattern
from tpspec.language.registry import BUILT_IN, spec_for
from tpspec.language.schema import Expr, Name, Names, Strict
from tpspec.language.yaml_source import read_document
from tpspec.layout import Cut, Segment, TensorLayout, whole
from tpspec.padded_numbers import Numbers, padded_numbers
from tpspec.resolution import Resolution, Shared
from tpspec.resolve import resolve
from tpspec.scope import ConfigScope

TABLE = "padded/architectures.yaml"
SIZES = 65
"""Sizes below this are tried for those that a refusal offers instead."""
ALIGN = 16
"""An MLP that is padded has a multiple of this many columns per rank: engines' kernels want whole vectors."""

INSTEAD = "tpspec convert --pad cuts it for tpspec run, whatever its architecture"


class Architecture(Strict):
    """One entry of the table; see there."""

    of: tuple[Name, ...]
    config: dict[Name, Expr]
    write: dict[Name, Any] = Field(default_factory=dict)
    defaults: dict[Name, Any] = Field(default_factory=dict)
    leave_out: tuple[Name, ...] = ()
    refuse: dict[str, Expr] = Field(default_factory=dict)
    zeros: dict[Names, Names] = Field(default_factory=dict)


class Table(Strict):
    """The whole table; see there."""

    common: dict[Name, Expr]
    architectures: tuple[Architecture, ...]

    @property
    def known(self) -> tuple[str, ...]:
        """The model types that may be written."""
        return tuple(dict.fromkeys(kind for entry in self.architectures for kind in entry.of))


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """A tensor of the padded model, made of a stored one: the share of the one rank of `cut`.

    With `numbers`, those are in it, and `stored` gives only its place and type.
    """

    name: str
    stored: StoredTensor
    cut: Cut
    numbers: Numbers | None = None

    @property
    def written(self) -> StoredTensor:
        """The tensor as the padded model has it."""
        layout = TensorLayout(self.name, self.stored.dtype, self.stored.shape, self.cut)
        return replace(self.stored, name=self.name, shape=layout.local_shape(0))


@dataclass(frozen=True)
class PaddedModel:
    """A model that needs no padding at `tp`: its type, the text of its config.json, and its tensors."""

    tp: int
    kind: str
    config: bytes
    tensors: tuple[PaddedTensor, ...]
    left_out: tuple[str, ...]
    resolution: Resolution
    """Of the model as it is written, which the tp divides."""


@cache
def architectures() -> Table:
    """How padded models are written."""
    where = f"specs/{TABLE}"
    try:
        return Table.model_validate(read_document(BUILT_IN / TABLE, where).data)
    except ValidationError as error:
        raise TpspecError(f"{where} is not valid: {error}") from None


def padded_model(checkpoint: Checkpoint, resolution: Resolution, tp: int) -> PaddedModel:
    """The padded model of a checkpoint, whose `resolution` is one with padding.

    Raises TpspecError where nothing has to be padded, or no architecture can say what was.
    """
    resolution.check(tp)
    config = checkpoint.config
    entry = _architecture(config, resolution, tp)
    scope = resolution.scope(tp)
    kept = [item for item in resolution.shared if not item.sharing.apart]
    numbers = padded_numbers(resolution, tp)
    tensors = {tensor.name: tensor for tensor in (_tensor(item, tp, numbers) for item in kept)}
    for zeros in _zeros(entry, scope, tensors):
        tensors[zeros.name] = zeros
    written = entry.defaults | {key: value for key, value in config.items() if key not in entry.leave_out}
    values = architectures().common | entry.config
    written |= {key: scope.evaluate(value) for key, value in values.items()} | entry.write
    apart = [item.tensor.name for item in resolution.shared if item.tensor and item.sharing.apart]
    text = json.dumps(written, indent=2, ensure_ascii=False).encode() + b"\n"
    kind = str(written["model_type"])
    spec = resolution.spec if kind == config.get("model_type") else spec_for([kind])
    padded = resolve(spec, written, {name: tensor.written for name, tensor in tensors.items()})
    findings = padded.findings or [misfit.finding() for misfit in padded.misfits(tp)]
    if findings:
        message = f"padded for tp={tp}, this model would not match {spec.where}"
        raise TpspecError(message, findings, INSTEAD)
    return PaddedModel(tp, kind, text, tuple(tensors.values()), (*apart, *resolution.ignored), padded)


def _architecture(config: Mapping[str, Any], resolution: Resolution, tp: int) -> Architecture:
    """The first entry that a model may be written as. Raises TpspecError with every reason where none is."""
    kind, table, scope = str(config.get("model_type")), architectures(), resolution.scope(tp)
    findings = []
    if kind not in table.known:
        known = f"no architecture is known that could say how it was padded; known: {', '.join(table.known)}"
        findings = [Finding(f"model_type '{kind}'", known)]
    else:
        for entry in (entry for entry in table.architectures if kind in entry.of):
            reasons = [
                (reason, condition) for reason, condition in entry.refuse.items() if scope.evaluate(condition)
            ]
            if not reasons:
                return entry
            findings += [
                Finding(reason, f"{condition}, where {scope.values(condition)}")
                for reason, condition in reasons
            ]
    sizes = [size for size in range(2, SIZES) if _writable(kind, resolution, size)]
    instead = f"tp that work: {', '.join(map(str, sizes))}; {INSTEAD}" if sizes else INSTEAD
    raise TpspecError(
        f"padded for tp={tp}, this model cannot be an ordinary checkpoint",
        [replace(finding, place=f"specs/{TABLE}") for finding in findings],
        instead,
    )


def _writable(kind: str, resolution: Resolution, tp: int) -> bool:
    """Whether an architecture takes the model, padded for a tp."""
    scope = resolution.scope(tp)
    entries = (entry for entry in architectures().architectures if kind in entry.of)
    return resolution.fits(tp) and any(not any(map(scope.evaluate, e.refuse.values())) for e in entries)


def _tensor(item: Shared, tp: int, numbers: Mapping[str, Numbers]) -> PaddedTensor:
    """A stored tensor with all ranks' units, zeros and copies of KV heads included, in their order."""
    assert item.tensor is not None
    told = numbers.get(item.tensor.name)
    if told:
        stop = item.tensor.start + nbytes(item.tensor.dtype, (told.length,))
        stored = replace(item.tensor, shape=(told.length,), stop=stop)
        return PaddedTensor(item.tensor.name, stored, whole(1), told)
    cut = whole(1) if item.placed.rule.tag == "vocab" else item.sharing.joined(tp)
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
