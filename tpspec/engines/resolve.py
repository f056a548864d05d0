"""A checkpoint's resolution and an engine's file → the engine's Layout for a tp."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from tpspec.cache import cache_dtype
from tpspec.dtypes import BITS, STORED_AS
from tpspec.engines.engine import Layer, Source, family_of, is_before
from tpspec.engines.fit import check_class, check_fit
from tpspec.engines.layout import EngineLayout, EngineTensor, Piece
from tpspec.engines.placing import engine_cut, is_vocabulary, side_by_side
from tpspec.engines.schema import EngineDocument, Quantized, Scalar, Tensors
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.language.patterns import compile_pattern
from tpspec.layout import Cut, TensorLayout, whole
from tpspec.module_storage import ModuleStorage
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution, Shared


class _Member(NamedTuple):
    """A piece, where it stands among those that make one tensor, and the entry that says so."""

    place: tuple[int, ...]
    piece: Piece
    source: Source | None


def engine_layout(
    resolution: Resolution, engine: EngineDocument, tp: int, release: str | None = None
) -> EngineLayout:
    """What an engine's ranks hold of a checkpoint whose headers were read; of a release, if one is given.

    Raises TpspecError for a model class or a quantization that the engine's file does not know, a tp that
    does not divide what the spec or the engine cuts, and tensors that do not make up one of the engine's.
    """
    layer = family_of(engine, resolution, release)
    quantized = _quantized(resolution, engine, release)
    if resolution.findings:
        resolution.check(tp)
    check_class(resolution, layer)
    making = _Making(resolution, engine, layer, quantized, tp)
    check_fit(resolution, engine, layer, making.vocabularies(), tp)
    tensors = [*making.joined(), *making.scales()]
    if making.findings:
        message = f"{engine.title} cannot load this checkpoint at tp={tp}"
        raise TpspecError(message, first_findings(making.findings))
    tensors.sort(key=lambda tensor: -max(1, BITS[tensor.dtype] // 8))
    return EngineLayout(engine, release or engine.compared_with, layer.name, tp, tuple(tensors))


def _quantized(resolution: Resolution, engine: EngineDocument, release: str | None) -> Quantized | None:
    """What the engine makes of the checkpoint's quantization; None where it has none."""
    quantization = detect_format(resolution.config)
    if quantization.document is None:
        return None
    for quantized in engine.quantized:
        if resolution.scope().evaluate(quantized.when, {}):
            if release and quantized.since and is_before(engine, release, quantized.since):
                raise TpspecError(
                    f"what {engine.title} before {quantized.since} keeps of weights quantized as here "
                    f"({quantization.name}) is not known",
                    remedy=f"use {quantized.since} or a later release",
                )
            for refusal in quantized.refuse:
                if resolution.scope().evaluate(refusal.when, {}):
                    raise TpspecError(refusal.because, remedy=refusal.remedy)
            return quantized
    raise TpspecError(
        f"what {engine.title} keeps of weights quantized as here ({quantization.name}) is not known",
        remedy=f"let {engine.title} load and cut the checkpoint itself",
    )


class _Making:
    def __init__(
        self,
        resolution: Resolution,
        engine: EngineDocument,
        layer: Layer,
        quantized: Quantized | None,
        tp: int,
    ) -> None:
        self.resolution = resolution
        self.engine = engine
        self.layer = layer
        self.quantized = quantized
        self.tp = tp
        self.findings: list[Finding] = []
        self.scope = resolution.scope()
        self.tied = bool(self.scope.lookup("tie_word_embeddings", {}))
        self.storage = ModuleStorage(self.scope, detect_format(resolution.config))
        experts = quantized.experts if quantized else None
        self.stacks_known = experts is None or bool(self.scope.evaluate(experts))
        self.heads = {p.rule.tied_to: p.template for p in resolution.spec.rules if p.rule.tied_to}
        """The embedding → the head that may be tied to it."""
        self._cuts: dict[tuple[int, int, str, int], Cut] = {}

    def vocabularies(self) -> list[Shared]:
        """The tensors whose rows are filled up and shared out."""
        cut = [item for item in self.resolution.shared if not item.sharing.apart and is_vocabulary(item)]
        return [item for item in cut if is_vocabulary(item, self._entry(item))]

    def _entry(self, item: Shared) -> Tensors | None:
        source = self._placed(item)[1]
        return source.tensors if source else None

    def joined(self) -> Iterator[EngineTensor]:
        """The tensors made of stored ones."""
        members: dict[str, list[_Member]] = defaultdict(list)
        for item in self.resolution.shared:
            if item.sharing.apart or (self.tied and item.placed.template in self.heads.values()):
                continue
            name, source, place = self._placed(item)
            if source and source.tensors.drop:
                continue
            piece = self._piece(item, source)
            if piece:
                members[name].append(_Member(place, piece, source))
        for name, found in members.items():
            found.sort(key=lambda member: member.place)
            if self._whole(name, found):
                source, pieces = found[0].source, tuple(member.piece for member in found)
                leaf = name.rpartition(".")[2]
                if self.quantized and leaf in self.quantized.last:
                    pieces = pieces[-1:]
                elif self.quantized and leaf in self.quantized.side_by_side and len(pieces) > 1:
                    pieces = (side_by_side(pieces, self.tp),)
                stacked = len(pieces) // source.count if source and found[0].place[1:] else None
                yield EngineTensor(name, pieces, stacked, self._is_vector(found[0].piece))

    def scales(self) -> Iterator[EngineTensor]:
        """The scalars that every attention layer has besides."""
        if self.layer.attention is None:
            return
        scales = dict(self.engine.scales)
        if self.quantized and not self.layer.latent:
            scales |= self.quantized.scales
        pieces = {name: (self._constant(scalar),) for name, scalar in scales.items()}
        module = compile_pattern(self.layer.attention)
        for layer in self.resolution.ranges["layer"]:
            for name, piece in pieces.items():
                yield EngineTensor(f"{module.name({'layer': layer})}.{name}", piece)

    def _constant(self, scalar: Scalar) -> Piece:
        model = STORED_AS[cache_dtype(self.resolution.config)[0]]
        dtype = model if scalar.dtype == "model" else scalar.dtype
        name = f"{scalar.value} in {dtype}"
        return Piece(None, TensorLayout(name, dtype, scalar.shape, whole(self.tp)), number=scalar.value)

    def _is_vector(self, piece: Piece) -> bool:
        """Whether a piece is one number for its matrix, which the engine keeps in a vector."""
        leaf = piece.layout.name.rpartition(".")[2]
        return bool(self.quantized and leaf in self.quantized.vectors and prod(piece.layout.shape) == 1)

    def _placed(self, item: Shared) -> tuple[str, Source | None, tuple[int, ...]]:
        """The engine's name of a tensor, the entry that gave it, and its place among those of that name."""
        assert item.tensor is not None
        name = item.prefix.strip(item.tensor.name)
        assert name is not None
        module, _, parameter = name.rpartition(".")
        for told, rest in ((name, ""), (module, parameter)):
            found = self.layer.find(told)
            if found:
                source, binding = found
                return self.layer.spelled(source.name(binding, rest)), source, source.place(binding)
        template = item.placed.template
        if self.tied and template in self.heads and self.layer.tied == "head":
            name = f"{self.heads[template]}.{parameter}"
        elif template not in self.heads.values() and not name.startswith(self.layer.prefix):
            name = self.layer.prefix + name
        return self.layer.spelled(name), None, ()

    def _piece(self, item: Shared, source: Source | None) -> Piece | None:
        stored, tensors = item.tensor, source.tensors if source else None
        assert stored is not None
        if self._is_dropped(item):
            return None
        if problem := self._unknown(item) or self._unknown_stack(item, source):
            self.findings.append(Finding(stored.name, problem, item.placed.place))
            return None
        cut = self._cut(item, tensors)
        turned = bool(tensors and tensors.transpose and len(stored.shape) > 1)
        shape = (*stored.shape[:-2], *stored.shape[:-3:-1]) if turned else stored.shape
        return Piece(stored, TensorLayout(stored.name, stored.dtype, shape, cut), turned)

    def _cut(self, item: Shared, tensors: Tensors | None) -> Cut:
        """The engine's cut; one for all that look alike, whom a large model has 90,000 of."""
        assert item.tensor is not None
        key = id(item.sharing), id(tensors), item.placed.rule.tag, len(item.tensor.shape)
        if key not in self._cuts:
            self._cuts[key] = engine_cut(item, tensors, self.tp, self.engine.vocabulary)
        return self._cuts[key]

    def _unknown(self, item: Shared) -> str:
        """Why it is not known what the engine makes of a tensor; empty where it is."""
        title, rule, sharing = self.engine.title, item.placed.rule, item.sharing
        if sharing.select:
            return f"{title} has no tensor for each unit of an axis"
        assert item.tensor is not None
        if self.quantized and item.parameter in ("", "weight"):
            told = self.storage.told(item.placed, item.binding).parameters.get("weight")
            if told and not told.accepts(item.tensor.dtype):
                said = f"config.json, by which {title} goes, says that it is quantized"
                return f"is {item.tensor.dtype}, and {said}"
        if self.quantized is None or item.parameter in ("", "weight", "bias"):
            return ""
        if item.parameter in self.quantized.unknown:
            return f"what {title} makes of it is not known"
        if prod(item.tensor.shape) == 1 and item.parameter not in self.quantized.vectors:
            return f"what {title} makes of such a scale is not known"
        if item.placed.template == item.parameter:
            return f"where {title} keeps a scale that belongs to no matrix is not known"
        if len(rule.parts) > 1 and sharing.dim is None and item.parameter not in self.quantized.last:
            return f"what {title} makes of one scale for {len(rule.parts)} matrices is not known"
        if rule.tag == "vocab":
            return f"how {title} keeps a quantized vocabulary is not known"
        return ""

    def _is_dropped(self, item: Shared) -> bool:
        """Whether the engine has no such tensor of a quantized matrix: a bias that a quantizer added, say."""
        if self.quantized is None:
            return False
        bias = item.placed.rule.bias if item.parameter == "bias" else None
        added = bias is not None and not self.scope.evaluate(bias, item.binding)
        return added or item.parameter in self.quantized.drop

    def _unknown_stack(self, item: Shared, source: Source | None) -> str:
        """Why it is not known how the engine stacks a tensor of an expert; empty where it is."""
        stacked = source is not None and len(source.place(item.binding)) > 1
        if self.stacks_known or not item.parameter or not stacked:
            return ""
        return f"how {self.engine.title} stacks experts that are quantized so is not known"

    def _whole(self, name: str, found: Sequence[_Member]) -> bool:
        """Whether pieces make up a tensor: every source for every unit, of one type."""
        source, first = found[0].source, found[0].piece.layout
        if source is None and len(found) == 1:
            return True
        count = source.count if source else 1
        others = [m.piece.layout for m in found if m.piece.layout.dtype != first.dtype]
        problem = ""
        if [m.place[-1:] for m in found] != [(n,) for n in range(count)] * (len(found) // count):
            held = ", ".join(member.piece.layout.name for member in found[:4])
            problem = f"is made of {count} tensors, but the checkpoint has {held}"
        elif others:
            problem = f"is made of {first.name} in {first.dtype} and {others[0].name} in {others[0].dtype}"
        if problem:
            self.findings.append(Finding(name, problem))
        return not problem
