"""From a resolved model, a device and what is asked to a plan's report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from tpspec.cache import names_dtype
from tpspec.planning import formulas
from tpspec.planning.advice import advise
from tpspec.planning.choices import rank_choices
from tpspec.planning.hardware import Hardware
from tpspec.planning.report import Advice, Choice, Link, PlanReport, Refused
from tpspec.planning.sizes import AtSize, Basis, Question
from tpspec.planning.weights import left_out, unsaid
from tpspec.quantities import size
from tpspec.resolution import Resolution
from tpspec.resolve import resolve
from tpspec.sites import COLLECTIVES

USUAL_SIZES = (1, 2, 4, 8, 16, 32)


def make_plan(
    model: str, resolution: Resolution, hardware: Hardware, question: Question, *, headers: bool
) -> PlanReport:
    """The report. Raises TpspecError where the model does not match its spec, or no size fits."""
    if resolution.findings:
        resolution.check(1)
    basis = Basis(resolution, hardware, question)
    widths = _widths(resolution, question)
    usual = widths or [tp for tp in USUAL_SIZES if resolution.fits(tp)]
    sizes = question.sizes or tuple(usual)
    refused = tuple(_refused(resolution, [tp for tp in sizes if not resolution.fits(tp)]))
    if len(refused) == len(sizes):
        resolution.check(sizes[0], or_pad=refused[0].pad_fits)
    at = {tp: AtSize(basis, tp) for tp in {*sizes, *widths} - {each.tp for each in refused}}
    planned = tuple(at[tp].plan() for tp in sizes if tp in at)
    choices: tuple[Choice, ...] = ()
    if question.gpus:
        plans = [at[tp].plan() for tp in widths]
        choices = rank_choices(plans, question.gpus, question.batch, lambda tp, batch: at[tp].step(batch))
    short = bool(question.gpus) and not any(choice.fits for choice in choices)
    least = _least(basis) if short else None
    links = _links(basis, at)
    return PlanReport(
        model,
        resolution.spec.name,
        headers,
        basis.model.parameters,
        round(basis.model.active),
        basis.stored.nbytes,
        hardware,
        basis.assumptions,
        planned,
        refused,
        links,
        (*_in_half(basis), *advise(planned, links, hardware, basis.assumptions, choices, least)),
        choices,
        tuple(_notes(basis, headers=headers)),
    )


def _widths(resolution: Resolution, question: Question) -> list[int]:
    """The tp sizes worth a comparison: those asked for, else all that fit.

    Padded, every size fits, and of all those count that leave no device idle.
    """
    devices = question.gpus
    if not devices:
        return []
    if question.sizes:
        return [tp for tp in question.sizes if tp <= devices and resolution.fits(tp)]
    fitting = [tp for tp in resolution.valid_tp if tp <= devices]
    return fitting if resolution.pad is None else [tp for tp in fitting if devices % tp == 0]


def _least(basis: Basis) -> int | None:
    """The least tp that holds the weights and a sequence."""
    sizes = basis.resolution.valid_tp
    return next((tp for tp in sizes if not AtSize(basis, tp).plan().why_not(1)), None)


def _refused(resolution: Resolution, sizes: Sequence[int]) -> Iterator[Refused]:
    """Why sizes do not fit."""
    if not sizes:
        return
    padded = resolution if resolution.pad else resolve(resolution.spec, resolution.config, None, "kv")
    for tp in sizes:
        reasons = tuple(str(misfit.finding()) for misfit in resolution.misfits(tp))
        yield Refused(tp, reasons, padded.fits(tp))


def _links(basis: Basis, at: Mapping[int, AtSize]) -> tuple[Link, ...]:
    """How far each link carries; none where no ranks meet."""
    summed = max(
        sum(
            site.payload(basis.element) * site.runs
            for site in size.sites
            if COLLECTIVES.get(site.kind) == "all_reduce"
        )
        for size in at.values()
    )
    if not summed:
        return ()
    hardware = basis.hardware
    return (
        _link(basis, "inside a node", hardware.link, summed),
        _link(basis, "across nodes", hardware.node_link, summed),
    )


def _link(
    basis: Basis, name: Literal["inside a node", "across nodes"], bandwidth: float, summed: int
) -> Link:
    """`summed` is what a rank gives to all-reduces for one token, in bytes: the same at every tp above 1."""
    balance = formulas.balance(basis.flops, bandwidth)
    return Link(name, bandwidth, balance, formulas.break_even_tp(basis.model.active, summed, balance))


def _in_half(basis: Basis) -> Iterator[Advice]:
    """That weights in float32 are seldom served so."""
    total, wide = basis.stored.nbytes, basis.stored.dtypes.get("F32", 0)
    if wide > total / 2:
        text = (
            f"Most of its weights are in float32: in bfloat16 they take {size(total - wide / 2)} in place of "
            f"{size(total)}; plan that with --dtype bfloat16."
        )
        yield Advice("weights", text)


def _notes(basis: Basis, *, headers: bool) -> Iterator[str]:
    """What the numbers leave out."""
    resolution, spec = basis.resolution, basis.resolution.spec
    if not headers:
        yield (
            f"names, shapes and element types ({', '.join(basis.stored.dtypes)}) are what {spec.where} makes "
            "of the config; with the checkpoint's headers they are its own"
        )
        if resolution.config.get("quantization_config"):
            yield "not counted, since a checkpoint may lack them: the format's input scales and orders"
        if optional := left_out(resolution):
            yield f"not counted, since a checkpoint may lack them: {', '.join(optional)}"
    if basis.question.dtype:
        yield f"weights are counted in {basis.question.dtype}, whatever they are stored in"
    if not names_dtype(resolution.config):
        yield f"element type not in the config: {basis.assumptions.dtype} assumed"
    if next(iter(basis.stored.dtypes), "") == "F32":
        yield "the rate of arithmetic is that of bfloat16; in float32 it is lower"
    context, positions = basis.question.context, positions_of(resolution.config)
    if positions and context > positions:
        yield f"sequences of {context} tokens are longer than the {positions} positions of the config"
    if shapeless := unsaid(resolution):
        yield f"not counted, since the config does not give their shapes: {', '.join(shapeless)}"
    many = any(resolution.ranges[name] for name in spec.active)
    if many and not any(kind.experts for kind in basis.stored.kinds):
        yield "the config does not say how many experts a token uses: all are counted as read"
    if not spec.cache:
        yield f"{spec.where} has no cache: every step reads all tokens again"
    yield "times are floors: activations, attention to earlier tokens, kernels and scheduling come on top"
    yield from _sources(basis.hardware)


def _sources(hardware: Hardware) -> Iterator[str]:
    """Which figures nobody has published, and which are measured."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for name, source in hardware.sources.items():
        by_source[source].append(name.replace("_", " "))
    for source, names in by_source.items():
        if source.startswith("an assumption"):
            measure = "measure them: tpspec plan --calibrate OUT"
            yield f"assumed, not published: {', '.join(names)} ({measure})"
        elif source.startswith("measured"):
            yield f"{source}: {', '.join(names)}"
    if hardware.overhead:
        yield (
            f"measured while a step read {size(hardware.overhead)}: that is the time of overhead, not of "
            "memory and arithmetic; a larger model shows what the machine does"
        )


def usual_context(config: Mapping[str, object], context: int) -> int:
    """The context, or all positions that the model has where those are fewer."""
    return min(context, positions_of(config) or context)


def positions_of(config: Mapping[str, object]) -> int | None:
    """The positions that a model has, as its config calls them; None where it does not say."""
    said = (config.get(name) for name in ("max_position_embeddings", "n_positions", "max_seq_len"))
    return next((number for number in said if isinstance(number, int) and number > 0), None)
