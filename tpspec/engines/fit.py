"""Whether an engine takes a model at a tp, and what to do where it does not."""

from __future__ import annotations

from collections.abc import Sequence

from tpspec.engines.engine import Layer
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

    def taken(size: int) -> bool:
        return layer.fits is None or bool(resolution.scope(size).evaluate(layer.fits, {}))

    sizes = [n for n in resolution.valid_tp if not any(rows % n for rows in filled) and taken(n)]
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
        elif _padding_helps(resolution, tp):
            remedy += f"   or pad it first: tpspec pad SRC PADDED --tp {tp}, then export PADDED"
        message = f"{engine.title} cannot load this checkpoint at tp={tp}"
        raise TpspecError(message, [*findings, *undivided], remedy)
    if not taken(tp):
        at = f" at tp={tp}" if sizes else ""
        message = f"{engine.title} refuses this model{at}: `{layer.fits}` does not hold"
        raise TpspecError(message, remedy=valid if sizes else "no tp helps: serve it with another engine")


def _padding_helps(resolution: Resolution, tp: int) -> bool:
    """Whether `tpspec pad` writes a model that the tp divides."""
    config = resolution.config
    known = config.get("model_type") in architectures().known
    return known and resolve(resolution.spec, config, pad="kv", align=ALIGN).fits(tp)


def undivided_vocabulary(resolution: Resolution, engine: EngineDocument, tp: int) -> str:
    """Why an engine does not load a model whose heads and columns a tp divides; empty where it does."""
    rows = (item.sharing.size for item in resolution.shared if is_vocabulary(item))
    problems = (vocabulary_misfit(count, engine.vocabulary, tp) for count in rows)
    return next(filter(None, problems), "")
