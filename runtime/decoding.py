"""What a model keeps of the tokens that it has read, and how it is handed back, by a spec's `decode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

NAMES: Mapping[str, str] = {
    "cache": "past_key_values",
    "own_cache": "past_key_values",
    "cache_params": "cache_params",
    "full_ids": "past_key_values",
}
"""The argument that takes it; a model of another `decode` keeps nothing and reads everything again."""


def keeps(decode: str | None) -> bool:
    """Whether a pass reads but the tokens that are new."""
    return (decode or "cache") in NAMES


def handed(ids: Tensor, read: int, decode: str | None) -> Tensor:
    """The ids that a pass is handed: those not `read` yet, or all where the model passes over the others."""
    return ids if decode == "full_ids" else ids[:, read:]


def kept_at_first(model: PreTrainedModel, decode: str | None) -> dict[str, Any]:
    """What the first pass is handed: a cache, where the model does not give back the one that it makes."""
    return {NAMES["own_cache"]: DynamicCache(config=model.config)} if decode == "own_cache" else {}


def kept_after(output: Any, decode: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """What the next pass is handed."""
    name = NAMES[decode or "cache"]
    return given if decode == "own_cache" else {name: output[name]}


def elements_of(kept: Any) -> int:
    """Elements of all tensors of numbers that a cache holds."""
    return sum(tensor.numel() for tensor in tensors_of(kept))


def tensors_of(kept: Any) -> list[Tensor]:
    """All tensors of numbers that a cache holds, layer by layer, each once."""
    tensors: dict[int, Tensor] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point():
            tensors[id(value)] = value
        elif isinstance(value, Mapping):
            visit(list(value.values()))
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif hasattr(value, "__dict__"):
            visit(vars(value))

    visit(kept)
    return list(tensors.values())
