"""Proving a spec: a model that is cut for a tp has to give the unsharded model's logits.

This is the one place where the runtime uses the converter: a proof covers both.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tpspec.absences import INCOMPLETE
from tpspec.checkpoint import open_checkpoint
from tpspec.config import CONFIG, model_types
from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.readers import PreshardedReader
from tpspec.converters.sources import open_source
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.file_names import rank_file
from tpspec.language.spec import Spec
from tpspec.layout import Cut
from tpspec.padding import Order
from tpspec.presharded import Presharded
from tpspec.quantization import detect_format
from tpspec.resolution import Resolution
from tpspec.resolve import resolve, resolve_fitting
from tpspec.rules import OWN_CONFIG
from tpspec.runtime.collectives import Alone, Collectives, Counted
from tpspec.runtime.comparing import (
    DECODE_STEPS,
    Recorded,
    first_difference,
    record,
    relative_error,
    sample_ids,
)
from tpspec.runtime.memory_names import MemoryNames
from tpspec.runtime.model_faults import ModelError, config_at_fault
from tpspec.runtime.proof import BOUND, Proof
from tpspec.runtime.rank_model import load_rank
from tpspec.runtime.sites import partial_sums
from tpspec.runtime.threads import ThreadGroup, Threads
from tpspec.runtime.tiny import check_known, tiny_config, tiny_model
from tpspec.safetensors_header import read_header
from tpspec.scope import ConfigScope, flatten

SLACK = 4
LOOSEST = 1e-4
"""Some models round so much more that a right cut is off by more than BOUND: then SLACK times what rounding
does to the unsharded model is let pass, up to LOOSEST. A wrong cut is off by 1e-2 and more."""
OF_TINY = {
    INCOMPLETE: "does the spec name what transformers saves?",
    OWN_CONFIG: "does the spec give the sizes that the model's code does?",
}
"""Remedies for a checkpoint, and what they come to where the checkpoint is prove's own."""
HALF_A_BIT = 2**-24
"""Of a float32, relative: where it is rounded off."""
PASSES = 1 + DECODE_STEPS
T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """A model to prove a spec with: its checkpoint, and what the unsharded model gives for some ids.

    `load` makes the unsharded model once more.
    """

    spec: Spec
    spec_file: Path | None
    checkpoint: Path
    resolution: Resolution
    ids: Tensor
    inputs: Mapping[str, Tensor]
    reference: Recorded
    load: Callable[[], PreTrainedModel]

    @cached_property
    def rounding(self) -> float:
        """How far, relative as an error, the logits move where weights have another last bit."""
        model = self.load()
        generator = torch.Generator().manual_seed(3)
        for tensor in filter(torch.is_floating_point, model.parameters()):
            tensor.data = tensor * (1 + torch.randn(tensor.shape, generator=generator) * HALF_A_BIT)
        moved = record(model, self.ids, self.spec.decode, self.inputs)
        return relative_error(moved.logits, self.reference.logits)


@contextmanager
def tiny_subject(
    spec: Spec,
    spec_file: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    pad: Order | None = None,
) -> Iterator[Subject]:
    """The tiny random model of a spec, saved as transformers saves it; `changes` go over its config.

    With `pad` it is cut for any tp, zero units filling up what that does not divide.
    Raises TpspecError where transformers cannot build it, or the spec does not match it.
    """
    model = tiny_model(spec, changes)
    with tempfile.TemporaryDirectory(prefix="tpspec-prove-") as scratch:
        model.save_pretrained(scratch)
        if spec.model_class == "text":
            tiny_config(spec.model_types[0], {**spec.tiny, **(changes or {})}).save_pretrained(scratch)
        try:
            made = subject(lambda: deepcopy(model), Path(scratch), spec, spec_file, pad)
        except TpspecError as error:
            findings = [
                replace(each, remedy=OF_TINY.get(each.remedy, each.remedy)) for each in error.findings
            ]
            raise TpspecError(error.message, findings, error.remedy) from None
        yield made


def checkpoint_subject(
    directory: Path, spec: Spec, spec_file: Path | None = None, pad: Order | None = None
) -> Subject:
    """A real checkpoint, which has to fit into memory in fp32, whole and once more in shards.

    Of a quantized one, what the ranks compute is held against what one rank computes of it all.
    """
    checkpoint = open_checkpoint(directory)
    check_known(model_types(checkpoint.config)[0], str(directory))
    if detect_format(flatten(checkpoint.config)).document:
        return subject(lambda: _dequantized(directory, spec, spec_file), directory, spec, spec_file, pad)
    return subject(lambda: _loaded(directory, spec), directory, spec, spec_file, pad)


def _loaded(directory: Path, spec: Spec) -> PreTrainedModel:
    """The model of a checkpoint. Raises TpspecError where transformers has no tensor for a part of it."""
    options = {"attn_implementation": spec.attention} if spec.attention else {}
    with config_at_fault(directory / CONFIG):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, trust_remote_code=False, output_loading_info=True, **options
        )
    model: PreTrainedModel = loaded[0].eval()
    found: Mapping[str, Any] = loaded[1]
    if missing := sorted(found["missing_keys"]):
        raise TpspecError(
            f"transformers loads {directory} with random numbers, which nothing can be compared with",
            first_findings([Finding(name, "it finds no tensor for this") for name in missing]),
            remedy="it does not find the checkpoint's tensors under these names: has config.json the "
            "model_type of the model that was saved, and not of one that holds it?",
        )
    return model


def _dequantized(directory: Path, spec: Spec, spec_file: Path | None) -> PreTrainedModel:
    checkpoint = open_checkpoint(directory)
    layout = resolve(spec, checkpoint.config, checkpoint.tensors).layout(1)
    with tempfile.TemporaryDirectory(prefix="tpspec-prove-") as scratch:
        out = Path(scratch) / "out"
        convert(open_source(str(directory)), out, layout)
        return load_rank(out, Alone(), spec_file=spec_file, dtype=torch.float32).model


def subject(
    load: Callable[[], PreTrainedModel],
    directory: Path,
    spec: Spec,
    spec_file: Path | None,
    pad: Order | None = None,
) -> Subject:
    """Runs the unsharded model. Raises TpspecError where it does not run, or the spec does not match it."""
    checkpoint = open_checkpoint(directory)
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors, pad)
    if resolution.findings or not resolution.fits(1):
        resolve_fitting(spec, checkpoint.config, checkpoint.tensors, 1, pad)
    model = load()
    ids = sample_ids(model.config.get_text_config().vocab_size)
    inputs = _inputs(resolution, len(ids))
    try:
        reference = record(model, ids, spec.decode, inputs)
    except ModelError as error:
        remedy = "do the config's values (a spec's `tiny`) fit together, and does it decode so (`decode`)?"
        raise TpspecError(f"{spec.where}: the unsharded model does not run: {error}", remedy=remedy) from None
    return Subject(spec, spec_file, directory, resolution, ids, inputs, reference, load)


def _inputs(resolution: Resolution, batch: int) -> dict[str, Tensor]:
    """Random tensors of the shapes that the spec gives, for each sequence of the batch."""
    scope = ConfigScope(resolution.spec, resolution.config)
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randn(batch, *(scope.evaluate(size) for size in shape), generator=generator)
        for name, shape in resolution.spec.inputs.items()
    }


def prove(subject: Subject, tp: int) -> Proof:
    """Converts the model, merges it again, runs every rank in a thread, and compares the logits.

    Compared are a prefill and 8 cached steps, in fp32. Raises TpspecError where tp does not fit.
    """
    layout = _fitting(subject, tp).layout(tp)
    with tempfile.TemporaryDirectory(prefix="tpspec-prove-") as scratch:
        out, back = Path(scratch) / "out", Path(scratch) / "merged"
        convert(open_source(str(subject.checkpoint)), out, layout)
        merge(PreshardedReader(Presharded.open(out)), back)
        merged = _digests(back) == _digests(subject.checkpoint)
        written = tuple(_tensor_bytes(out / rank_file(rank, tp)) for rank in range(tp))
        try:
            ranks = run_in_threads(tp, lambda collectives: _run(subject, out, collectives))
        except TpspecError as error:
            return Proof(tp, merged=merged, failure=str(error))
    proof = _judge(subject, tp, ranks) if merged else _not_merged(tp)
    return replace(
        proof, merged=merged, rank_bytes=written, given=ranks[0].given, kept=ranks[0].recorded.kept
    )


def _fitting(subject: Subject, tp: int) -> Resolution:
    """The subject's resolution where tp fits. Raises TpspecError, which says what would."""
    resolution = subject.resolution
    if resolution.fits(tp):
        return resolution
    checkpoint, order = open_checkpoint(subject.checkpoint), resolution.pad.order if resolution.pad else None
    return resolve_fitting(subject.spec, checkpoint.config, checkpoint.tensors, tp, order)


@dataclass(frozen=True)
class _Rank:
    """What one rank gave."""

    recorded: Recorded
    counted: Counter[str]
    given: Counter[str]
    predicted: Counter[str]
    partial: frozenset[str]
    vocabulary: Cut | None


def _run(subject: Subject, out: Path, collectives: Collectives) -> _Rank:
    counted = Counted(collectives)
    rank = load_rank(out, counted, spec_file=subject.spec_file, dtype=torch.float32)
    recorded = record(rank.model, subject.ids, subject.spec.decode, subject.inputs)
    totals = {kind: counted.total(kind) for kind in ("all_reduce", "all_gather")}
    calls = Counter({kind: total.calls for kind, total in totals.items()})
    given = Counter({kind: total.payload for kind, total in totals.items()})
    partial = partial_sums(subject.resolution, MemoryNames(rank.spec, rank.model), rank.sites)
    expected = rank.predicted(text_alone=not subject.inputs)
    return _Rank(recorded, calls, given, expected, partial, rank.vocabulary)


def _judge(subject: Subject, tp: int, ranks: list[_Rank]) -> Proof:
    worst, bound, failure = 0.0, BOUND, ""
    tokens = subject.reference.logits[0].shape[-1]
    for number, rank in enumerate(ranks):
        error = relative_error(rank.recorded.logits, subject.reference.logits)
        worst = max(worst, error)
        expected = Counter({kind: n * PASSES for kind, n in rank.predicted.items()})
        if failure:
            continue
        if BOUND <= error < LOOSEST:
            bound = max(BOUND, min(SLACK * subject.rounding, LOOSEST))
        if not error < bound:
            outputs = rank.recorded.outputs
            where = first_difference(outputs, subject.reference.outputs, rank.partial, bound)
            failure = f"rank {number}: logits are off by {error:.1e}; {where}"
        elif rank.vocabulary and rank.vocabulary.size != tokens:
            said = f"chooses among {rank.vocabulary.size} tokens, and the model among {tokens}"
            failure = f"rank {number}: generation {said}; does the vocabulary's axis say `real`?"
        elif rank.counted != expected:
            failure = f"rank {number}: {PASSES} passes ran {_text(rank.counted)}, not {_text(expected)}"
    per_pass = Counter({kind: n // PASSES for kind, n in ranks[0].counted.items()})
    return Proof(tp, worst, bound, per_pass, ranks[0].predicted, failure=failure)


def _not_merged(tp: int) -> Proof:
    return Proof(tp, failure="merging did not give back the bytes of the checkpoint")


def _text(counts: Counter[str]) -> str:
    return " and ".join(f"{n} {kind}s" for kind, n in sorted(counts.items()) if n) or "no collective"


def run_in_threads(size: int, work: Callable[[Collectives], T]) -> list[T]:
    """Every rank's result, each rank in a thread. Raises what the first rank to fail raised."""
    group = ThreadGroup(size)
    failures: list[Exception] = []

    def one(rank: int) -> T | None:
        try:
            return work(Threads(group, rank))
        except Exception as error:  # noqa: BLE001 - raised again below, once no rank waits any more
            failures.append(error)
            group.leave(rank, str(error))
            return None

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(one, range(size)))
    if failures:
        raise failures[0]
    return [result for result in results if result is not None]


def _tensor_bytes(path: Path) -> int:
    """Bytes of the tensors of a safetensors file."""
    return sum(tensor.stop - tensor.start for tensor in read_header(path).tensors)


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors*")}
