"""Running a model and noting what each module gave, so that the first difference can be named."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tpspec.runtime.decoding import elements_of, handed, keeps, kept_after, kept_at_first
from tpspec.runtime.model_faults import code_at_fault

DECODE_STEPS = 8


@dataclass
class Recorded:
    """The logits of a prefill and of each decoding step, and each module's output in the prefill.

    `kept` is how many elements the model's cache has at the end.
    """

    logits: list[Tensor] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    kept: int = 0


def sample_ids(vocab_size: int, batch: int = 2, length: int = 11) -> Tensor:
    """Token ids [batch, length + DECODE_STEPS] that cover the vocabulary's two ends."""
    ids = torch.randint(
        vocab_size, (batch, length + DECODE_STEPS), generator=torch.Generator().manual_seed(1)
    )
    ids[0, :2] = torch.tensor([0, vocab_size - 1])
    return ids


def record(
    model: PreTrainedModel, ids: Tensor, decode: str | None, inputs: Mapping[str, Tensor] | None = None
) -> Recorded:
    """Runs the prompt and then one token after another from the cache, if the model has one.

    `ids` is [batch, length]; the last DECODE_STEPS columns are decoded. Logits are [batch, n, vocab].
    `inputs` go with the prompt.
    Raises ModelError naming the module in which the model's code fails.
    """
    with code_at_fault(model), torch.no_grad():
        return _record(model, ids, decode, inputs or {})


def _record(
    model: PreTrainedModel, ids: Tensor, decode: str | None, inputs: Mapping[str, Tensor]
) -> Recorded:
    recorded = Recorded()
    length = ids.shape[1] - DECODE_STEPS
    with _watched(model, recorded.outputs):
        kept = kept_at_first(model, decode)
        output = model(input_ids=ids[:, :length], use_cache=keeps(decode), **kept, **inputs)
    recorded.logits.append(output.logits)
    for step in range(DECODE_STEPS):
        here = length + step
        if keeps(decode):
            kept = kept_after(output, decode, kept)
            output = model(input_ids=handed(ids[:, : here + 1], here, decode), use_cache=True, **kept)
            logits = output.logits
        else:
            logits = model(input_ids=ids[:, : here + 1], use_cache=False).logits[:, -1:]
        recorded.logits.append(logits)
    if keeps(decode):
        recorded.kept = elements_of(kept_after(output, decode, kept))
    return recorded


def relative_error(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference of two lists of logits over the largest logit; infinite for other shapes."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or not torch.isfinite(a).all():
            return float("inf")
        worst = max(worst, float((a - b).abs().max() / b.abs().max()))
    return worst


@contextmanager
def _watched(model: nn.Module, outputs: dict[str, Tensor]) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):  # it gives what it is given, be it a part of a sum
            continue

        def hook(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            del module, args
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                outputs.setdefault(name, tensor.detach().clone())

        handles.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_difference(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], partial: Collection[str], bound: float
) -> str:
    """The first module, in the order of execution, whose output differs from the unsharded model's.

    Modules inside a cut give a part of the whole model's output, and those of `partial` a part of a sum:
    these are passed over, for what follows them shows the fault.
    """
    for name, whole in theirs.items():
        mine = ours.get(name)
        if mine is None or name in partial or mine.shape != whole.shape or not whole.numel():
            continue
        error = float((mine - whole).abs().max() / whole.abs().max().clamp(min=1e-30))
        if not error <= bound:
            return f"the first module that differs is {name} (by {error:.1e} of its largest value)"
    return "no module differs in the prefill, so the fault is in decoding"
