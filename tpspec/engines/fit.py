"""Whether an engine takes a model at a tp, and what to do where it does not."""

from __future__ import annotations

from collections.abc import Sequence

from tpspec.engines.engine import Layer, family_of
from tpspec.engines.placing import filled_up, is_vocabulary, vocabulary_misfit
from tpspec.engines.schema import EngineDocument
from tpspec.errors import Finding, TpspecError
from tpspec.language import registry
from tpspec.padded_model import ALIGN, architectures
from tpspec.resolution import Resolution, Shared
from tpspec.resolve import resolve


def check_class(resolution: Resolution, layer: Layer) -> None:
    """Raises TpspecError where the tensors are not those of the model class that config.json names.

    The engine makes the class's tensors, of whatever type the model is: those that a class has and the
    checkpoint lacks, a bias say, would stay as the engine happens to have made them.
    """
    spec = registry.spec_for([layer.model_type])
    if spec.name == resolution.spec.name:
        return
    tensors = {item.tensor.name: item.tensor for item in resolution.shared if item.tensor}
    of_class = resolve(spec, resolution.config, tensors)
    if of_class.findings:
        model_type = resolution.config.get("model_type")
        raise TpspecError(
            f"config.json names the class {layer.cls} and the model type {model_type}: the tensors match "
            f"{resolution.spec.where}, but not {spec.where}, that of the class",
            of_class.findings,
            remedy=f"name in `architectures` the class of a {model_type}",
        )


def check_fit(
    resolution: Resolution, engine: EngineDocument, layer: Layer, vocabularies: Sequence[Shared], tp: int
) -> None:
    """Raises TpspecError where a tp does not divide what the spec or the engine cuts, or the engine refuses.

    `vocabularies` are the tensors whose rows the engine fills up and cuts.
    """
    multiple = engine.vocabulary
    filled = {filled_up(item.sharing.size, multiple) for item in vocabularies}

    sizes = [
        n
        for n in resolution.valid_tp
        if not any(rows % n for rows in filled) and not _untaken(resolution, layer, n)
    ]
    valid = f"valid tp: {', '.join(map(str, sizes))}"
    findings = [misfit.finding() for misfit in resolution.misfits(tp)]
    undivided = [
        Finding(item.tensor.name if item.tensor else "", problem, item.placed.place)
        for item in vocabularies
        if (problem := vocabulary_misfit(item.sharing.size, multiple, tp))
    ]
    if findings or undivided:
        remedy = valid
        if undivided:
            remedy += "   (tpspec pad leaves a vocabulary as it is)"
        elif not _untaken(resolution, layer, tp) and _padding_helps(resolution, tp):
            remedy += f"   or pad it first: tpspec pad SRC PADDED --tp {tp}, then export PADDED"
        message = f"{engine.title} cannot load this checkpoint at tp={tp}"
        raise TpspecError(message, [*findings, *undivided], remedy)
    if wanted := _untaken(resolution, layer, tp):
        at = f" at tp={tp}" if sizes else ""
        message = f"{engine.title} refuses this model{at}: {wanted}"
        raise TpspecError(message, remedy=valid if sizes else "no tp helps: serve it with another engine")


def _padding_helps(resolution: Resolution, tp: int) -> bool:
    """Whether `tpspec pad` writes a model that the tp divides."""
    config = resolution.config
    known = config.get("model_type") in architectures().known
    return known and resolve(resolution.spec, config, pad="kv", align=ALIGN).fits(tp)


def refusal(resolution: Resolution, engine: EngineDocument, tp: int) -> str:
    """Why an engine does not load a model that a tp divides, as far as is known; empty where it does."""
    for item in resolution.shared:
        if is_vocabulary(item) and (problem := vocabulary_misfit(item.sharing.size, engine.vocabulary, tp)):
            return f"the vocabulary's {problem}"
    try:
        layer = family_of(engine, resolution)
    except TpspecError:
        return ""
    return _untaken(resolution, layer, tp)


def _untaken(resolution: Resolution, layer: Layer, tp: int) -> str:
    """The condition of an engine that does not hold at a size; empty where it takes it."""
    scope = resolution.scope(tp)
    if layer.fits is None or scope.evaluate(layer.fits, {}):
        return ""
    return f"`{layer.fits}` does not hold, where {scope.values(layer.fits)}"
