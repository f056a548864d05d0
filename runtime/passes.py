"""The forward passes that generation makes: a batch's prompts, then one token of each after another."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tpspec.runtime.decoding import handed, keeps, kept_after, kept_at_first
from tpspec.runtime.model_faults import code_at_fault
from tpspec.runtime.rank_model import RankModel

FITS = "do the values in config.json fit together? transformers, whose code it is, fails at this too"


def can_pad(rank: RankModel) -> bool:
    """Whether prompts of unequal length give side by side what each gives alone.

    Attention leaves padding out of account. What a recurrent layer keeps of a sequence has seen it, and an
    indexer that ranks the tokens to attend to counts it.
    """
    recurrent = any(entry.per_sequence is not None for entry in rank.spec.cache)
    indexed = hasattr(rank.model.config.get_text_config(), "index_n_heads")
    return rank.spec.decode in (None, "cache") and not recurrent and not indexed


class Passes:
    """The passes of one batch. Shorter prompts are padded on the left, so that all end at one place.

    Each pass gives this rank's logits [b, rows] for the next token. A sequence that goes on past the
    model's `positions`, as it may when it has ended before others, stays at the last of them.
    """

    def __init__(self, rank: RankModel, prompts: Sequence[Sequence[int]], positions: int | None) -> None:
        rank.attached.full_logits = False
        self.model = rank.model
        self.decode = rank.spec.decode
        self.accepts = _parameters(rank.model)
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        rows = [[0] * count + [*prompt] for count, prompt in zip(padding, prompts, strict=True)]
        device = rank.model.device
        self.ids = torch.tensor(rows, device=device)
        self.padding = torch.tensor(padding, device=device)[:, None]
        self.padded = any(padding)
        self.last_position = None if positions is None else positions - 1
        self.cache = kept_at_first(rank.model, rank.spec.decode)

    def first(self) -> Tensor:
        """Reads the prompts."""
        return self._run(self.ids)

    def next(self, tokens: Tensor) -> Tensor:
        """Reads one more token [b] of each sequence."""
        read = self.ids.shape[1] if keeps(self.decode) else 0
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        return self._run(handed(self.ids, read, self.decode))

    @torch.inference_mode()
    def _run(self, ids: Tensor) -> Tensor:
        cached = keeps(self.decode)
        inputs: dict[str, Any] = {"input_ids": ids, "use_cache": cached, **self.cache}
        places = torch.arange(self.ids.shape[1], device=ids.device)
        if self.padded:
            inputs["attention_mask"] = (places >= self.padding).long()
        if "position_ids" in self.accepts:  # told always: not every model counts on from its cache
            inputs["position_ids"] = (places[-ids.shape[1] :] - self.padding).clamp(0, self.last_position)
        if "logits_to_keep" in self.accepts:
            inputs["logits_to_keep"] = 1
        with code_at_fault(self.model, FITS):
            output = self.model(**inputs)
        if cached:
            self.cache = kept_after(output, self.decode, self.cache)
        logits: Tensor = output.logits[:, -1]
        return logits


def _parameters(model: PreTrainedModel) -> set[str]:
    """What a forward takes by name, or hands down to that of the model without the head."""
    forwards = (model.forward, model.base_model.forward)
    return {name for forward in forwards for name in inspect.signature(forward).parameters}
