"""The forward passes that generation makes: a batch's prompts, then one token of each after another."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tpspec.runtime.rank_model import RankModel


def can_pad(rank: RankModel) -> bool:
    """Whether prompts of unequal length give side by side what each gives alone.

    Attention leaves padding out of account; what a recurrent layer keeps of a sequence has seen it.
    """
    recurrent = any(entry.per_sequence is not None for entry in rank.spec.cache)
    return rank.spec.decode in (None, "cache") and not recurrent


class Passes:
    """The passes of one batch. Shorter prompts are padded on the left, so that all end at one place.

    Each pass gives this rank's logits [b, rows] for the next token. A sequence that goes on past the
    model's `positions`, as it may when it has ended before others, stays at the last of them.
    """

    def __init__(self, rank: RankModel, prompts: Sequence[Sequence[int]], positions: int | None) -> None:
        rank.attached.full_logits = False
        self.model = rank.model
        self.decode = rank.spec.decode or "cache"
        self.accepts = inspect.signature(rank.model.forward).parameters
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        rows = [[0] * count + [*prompt] for count, prompt in zip(padding, prompts, strict=True)]
        device = rank.model.device
        self.ids = torch.tensor(rows, device=device)
        self.padding = torch.tensor(padding, device=device)[:, None] if any(padding) else None
        self.last_position = None if positions is None else positions - 1
        self.length = 0
        self.cache: dict[str, Any] = {}

    def first(self) -> Tensor:
        """Reads the prompts."""
        return self._run(self.ids)

    def next(self, tokens: Tensor) -> Tensor:
        """Reads one more token [b] of each sequence."""
        if self.decode in ("none", "full_ids"):
            self.length = 0
            self.ids = torch.cat([self.ids, tokens[:, None]], 1)
            return self._run(self.ids)
        return self._run(tokens[:, None])

    @torch.inference_mode()
    def _run(self, ids: Tensor) -> Tensor:
        start, self.length = self.length, self.length + ids.shape[1]
        inputs: dict[str, Any] = {"use_cache": self.decode not in ("none", "full_ids"), **self.cache}
        if self.padding is not None:
            places = torch.arange(self.length, device=ids.device)
            inputs["attention_mask"] = (places >= self.padding).long()
            inputs["position_ids"] = (places[start:] - self.padding).clamp(0, self.last_position)
        inputs["logits_to_keep"] = 1
        inputs = {name: value for name, value in inputs.items() if name in self.accepts}
        output = self.model(input_ids=ids, **inputs)
        if inputs.get("use_cache"):
            name = "cache_params" if self.decode == "cache_params" else "past_key_values"
            self.cache = {name: output[name]}
        logits: Tensor = output.logits[:, -1]
        return logits
