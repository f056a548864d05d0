"""The Layout of an engine: every tensor of a rank, made of pieces of a checkpoint's tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpspec.checkpoint import StoredTensor
from tpspec.dtypes import BITS
from tpspec.engines.engine import Layer, Source, family_of
from tpspec.engines.placing import engine_cut
from tpspec.engines.schema import EngineDocument
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.language.patterns import compile_pattern
from tpspec.layout import TensorLayout, whole
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution, Shared

ONE = "1.0"
"""Name of the piece that no checkpoint has: a float32 one, without dimensions."""

PAD = "pad it first: tpspec pad"


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stored tensor gives to one of an engine's: its cut, and whether it is read transposed.

    Without a stored tensor it is the constant one.
    """

    stored: StoredTensor | None
    layout: TensorLayout
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One of an engine's tensors: its pieces follow one another in every rank's bytes.

    With `stacked`, so many tensors of as many pieces each are stacked.
    """

    name: str
    pieces: tuple[Piece, ...]
    stacked: int | None = None

    @property
    def dtype(self) -> str:
        return self.pieces[0].layout.dtype

    def shape(self, rank: int) -> tuple[int, ...]:
        """What a rank holds."""
        shapes = [piece.layout.local_shape(rank) for piece in self.pieces]
        joined = shapes[: len(shapes) // (self.stacked or 1)]
        shape = (sum(part[0] for part in joined), *joined[0][1:]) if len(joined) > 1 else joined[0]
        return shape if self.stacked is None else (self.stacked, *shape)


@dataclass(frozen=True)
class EngineLayout:
    """Every tensor of every rank, in the order in which files store them."""

    engine: EngineDocument
    family: str
    tp: int
    tensors: tuple[EngineTensor, ...]


class _Member(NamedTuple):
    """A piece, where it stands among those that make one tensor, and the entry that says so."""

    place: tuple[int, ...]
    piece: Piece
    source: Source | None


def engine_layout(
    resolution: Resolution, engine: EngineDocument, tp: int, release: str | None = None
) -> EngineLayout:
    """What an engine's ranks hold of a checkpoint whose headers were read; of a release, if one is given.

    Raises TpspecError for quantized weights, a model class that the engine's file does not know, a tp that
    does not divide what the spec or the engine cuts, and tensors that do not make up one of the engine's.
    """
    layer = family_of(engine, resolution, release)
    quantization = detect_format(resolution.config)
    if quantization.document:
        message = f"{engine.title} keeps quantized weights ({quantization.name}) as its kernels order them"
        raise TpspecError(message, remedy="let the engine load and cut the checkpoint itself")
    _check_fit(resolution, tp)
    if layer.fits and not resolution.scope(tp).evaluate(layer.fits, {}):
        message = f"{engine.title} refuses this model at tp={tp}: `{layer.fits}` does not hold"
        raise TpspecError(message, remedy=f"give a smaller tp, or {PAD}")
    making = _Making(resolution, engine, layer, tp)
    tensors = [*making.joined(), *making.scales()]
    if making.findings:
        message = f"{engine.title} cannot load this checkpoint at tp={tp}"
        raise TpspecError(message, first_findings(making.findings))
    tensors.sort(key=lambda tensor: -max(1, BITS[tensor.dtype] // 8))
    return EngineLayout(engine, layer.name, tp, tuple(tensors))


def _check_fit(resolution: Resolution, tp: int) -> None:
    try:
        resolution.check(tp)
    except TpspecError as error:
        if resolution.findings:
            raise
        raise TpspecError(error.message, error.findings, f"{error.remedy}   or {PAD}") from None


class _Making:
    def __init__(self, resolution: Resolution, engine: EngineDocument, layer: Layer, tp: int) -> None:
        self.resolution = resolution
        self.engine = engine
        self.layer = layer
        self.tp = tp
        self.findings: list[Finding] = []
        self.tied = bool(resolution.scope().lookup("tie_word_embeddings", {}))
        self.heads = {p.rule.tied_to: p.template for p in resolution.spec.rules if p.rule.tied_to}
        """The embedding → the head that may be tied to it."""

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
                pieces = tuple(member.piece for member in found)
                stacked = (
                    len(pieces) // found[0].source.count if found[0].source and found[0].place[1:] else None
                )
                yield EngineTensor(name, pieces, stacked)

    def scales(self) -> Iterator[EngineTensor]:
        """The scalars that every attention layer has besides."""
        if self.layer.attention is None:
            return
        one = Piece(None, TensorLayout(ONE, "F32", (), whole(self.tp)))
        module = compile_pattern(self.layer.attention)
        for layer in self.resolution.ranges["layer"]:
            for scale in self.engine.scales:
                yield EngineTensor(f"{module.name({'layer': layer})}.{scale}", (one,))

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
        if item.sharing.select:
            problem = f"{self.engine.title} has no tensor for each unit of an axis"
            self.findings.append(Finding(stored.name, problem, item.placed.place))
            return None
        try:
            cut = engine_cut(item, tensors, self.tp, self.engine.vocabulary)
        except ValueError as error:
            self.findings.append(Finding(stored.name, str(error), item.placed.place))
            return None
        turned = bool(tensors and tensors.transpose and len(stored.shape) > 1)
        shape = (*stored.shape[:-2], *stored.shape[:-3:-1]) if turned else stored.shape
        return Piece(stored, TensorLayout(stored.name, stored.dtype, shape, cut), turned)

    def _whole(self, name: str, found: Sequence[_Member]) -> bool:
        """Whether pieces make up a tensor: every source for every unit, of one type, alike but for rows."""
        source, first = found[0].source, found[0].piece.layout
        if source is None and len(found) == 1:
            return True
        units = [tuple(m.place[-1:]) for m in found]
        count = source.count if source else 1
        problem = ""
        if len(found) % count or units != [(n,) for n in range(count)] * (len(found) // count):
            held = ", ".join(member.piece.layout.name for member in found[:4])
            problem = f"is made of {count} tensors, but the checkpoint has {held}"
        elif any(m.piece.layout.dtype != first.dtype for m in found):
            others = next(m.piece.layout for m in found if m.piece.layout.dtype != first.dtype)
            problem = f"is made of {first.name} in {first.dtype} and {others.name} in {others.dtype}"
        if problem:
            self.findings.append(Finding(name, problem))
        return not problem
