"""Proving a spec: a tiny model, cut for each tp, has to give the unsharded model's logits.

This is the one place where the runtime uses the converter: a proof covers both.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from transformers import PreTrainedModel

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.merge import merge
from tpspec.converters.sources import open_source
from tpspec.errors import TpspecError
from tpspec.language.spec import Spec
from tpspec.resolve import resolve
from tpspec.runtime.collectives import Collectives, Counted
from tpspec.runtime.comparing import (
    DECODE_STEPS,
    Recorded,
    first_difference,
    record,
    relative_error,
    sample_ids,
)
from tpspec.runtime.rank_model import load_rank
from tpspec.runtime.threads import ThreadGroup, Threads
from tpspec.runtime.tiny import save_checkpoint, tiny_model

BOUND = 1e-5
T = TypeVar("T")


@dataclass(frozen=True)
class Proof:
    """What one tp gave. `error` is relative; `collectives` of one forward pass, counted and predicted."""

    tp: int
    error: float
    counted: dict[str, int]
    predicted: dict[str, int]
    merged: bool
    failure: str = ""

    @property
    def holds(self) -> bool:
        """Whether everything that the spec claims was seen."""
        return not self.failure

    def as_json(self) -> dict[str, Any]:
        """The proof for machines."""
        return {"holds": self.holds, **asdict(self)}


def prove(
    spec: Spec,
    sizes: Sequence[int],
    *,
    spec_file: Path | None = None,
    model: PreTrainedModel | None = None,
    report: Callable[[Proof], None] | None = None,
) -> list[Proof]:
    """Proves a spec at each tp that fits its tiny model (or the model given).

    A proof converts the model, merges it again byte for byte, runs every rank in a thread, and
    compares the logits of a prefill and of 8 cached steps in fp32.
    Raises TpspecError where no asked tp fits, or the spec does not match the model's checkpoint.
    """
    model = model or tiny_model(spec)
    with tempfile.TemporaryDirectory(prefix="tpspec-prove-") as scratch:
        folder = Path(scratch)
        save_checkpoint(model, folder / "model")
        checkpoint = open_checkpoint(folder / "model")
        resolution = resolve(spec, checkpoint.config, checkpoint.tensors)
        for tp in sizes:
            resolution.check(tp)
        ids = sample_ids(model.config.get_text_config().vocab_size)
        reference = record(model, ids, spec.decode)
        proofs = []
        for tp in sizes:
            out = folder / f"tp{tp}"
            convert(open_source(str(folder / "model")), out, resolution.layout(tp))
            merge(open_source(str(out)), folder / f"merged{tp}")
            same = _digests(folder / "model") == _digests(folder / f"merged{tp}")
            proofs.append(_prove_one(out, tp, ids, reference, spec, spec_file, same))
            if report:
                report(proofs[-1])
    return proofs


def _prove_one(
    out: Path, tp: int, ids: Tensor, reference: Recorded, spec: Spec, spec_file: Path | None, merged: bool
) -> Proof:
    def run(collectives: Collectives) -> tuple[Recorded, Counter[str], Counter[str], dict[str, str]]:
        counted = Counted(collectives)
        rank = load_rank(out, counted, spec_file=spec_file)
        recorded = record(rank.model, ids, spec.decode)
        partial = {site.module: site.kind for site in rank.sites if site.kind == "hold"}
        calls = Counter({kind: counted.total(kind).calls for kind in rank.predicted()})
        return recorded, calls, rank.predicted(), partial

    try:
        ranks = run_in_threads(tp, run)
    except TpspecError as error:
        return Proof(tp, float("inf"), {}, {}, merged, str(error))
    passes = 1 + DECODE_STEPS
    worst, failure = 0.0, "" if merged else "merging did not give back the original bytes"
    for number, (recorded, counted, expected, partial) in enumerate(ranks):
        error = relative_error(recorded.logits, reference.logits)
        worst = max(worst, error)
        if not error < BOUND and not failure:
            where = first_difference(recorded.outputs, reference.outputs, partial, BOUND)
            failure = f"rank {number}: logits are off by {error:.1e}; first at {where or 'a decoding step'}"
        total = Counter({kind: n * passes for kind, n in expected.items()})
        if counted != total and not failure:
            failure = (
                f"rank {number}: {dict(counted)} collectives in {passes} passes, predicted {dict(total)}"
            )
    _, counted, expected, _ = ranks[0]
    per_pass = {kind: n // passes for kind, n in counted.items()}
    return Proof(tp, worst, per_pass, dict(expected), merged, failure)


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


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors*")}
