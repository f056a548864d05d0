"""How a model's names in memory differ from those it saves, found by where the values are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tpspec.drafting.evidence import template_of


def memory_entries(model: PreTrainedModel, folder: Path) -> list[dict[str, str]]:
    """The `memory` entries of a spec: pieces of names that differ, and stored tensors that memory stacks.

    The model's values are random, so a stored tensor is found in memory by its values.
    """
    stored = {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    memory = dict(model.state_dict())
    strange = {name: tensor for name, tensor in stored.items() if name not in memory}
    candidates = {name: tensor for name, tensor in memory.items() if name not in stored}
    entries: dict[tuple[str, ...], dict[str, str]] = {}
    stacks: dict[str, dict[int, str]] = {}
    for name, tensor in strange.items():
        for into, place in _places(tensor, candidates):
            if place is None:
                entry = _rename(name, into)
                entries[tuple(entry.values())] = entry
            elif "{expert}" in (template := template_of(name)[0]):
                stacks.setdefault(template_of(into)[0], {})[place] = template
            break
    for into, parts in stacks.items():
        stack = _alternatives([parts[place] for place in sorted(parts)])
        entries[into, stack] = {"stack": stack, "over": "expert", "into": into}
        block = stack.partition(".{expert}")[0]
        if block not in into:
            entry = _rename(block, into.rpartition(".")[0])
            entries[tuple(entry.values())] = entry
    return sorted(entries.values(), key=lambda entry: "stack" in entry)


def _places(tensor: Tensor, memory: Mapping[str, Tensor]) -> Iterator[tuple[str, int | None]]:
    """Parameters that hold the tensor: as a whole, or in a row of theirs, at an offset."""
    for name, other in memory.items():
        if other.shape == tensor.shape and torch.equal(other, tensor):
            yield name, None
        elif other.dim() == tensor.dim() + 1 and other.shape[2:] == tensor.shape[1:]:
            rows = tensor.shape[0]
            for offset in range(0, other.shape[1] - rows + 1, rows):
                if any(torch.equal(row[offset : offset + rows], tensor) for row in other):
                    yield name, offset


def _rename(stored: str, memory: str) -> dict[str, str]:
    """The pieces in which two names differ."""
    old, new = stored.split("."), memory.split(".")
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
        del old[-1], new[-1]
    return {"rename": ".".join(old), "to": ".".join(new)}


def _alternatives(templates: list[str]) -> str:
    """Names that differ in one piece, that piece in braces."""
    if len(templates) == 1:
        return templates[0]
    columns = list(zip(*(template.split(".") for template in templates), strict=True))
    return ".".join(column[0] if len(set(column)) == 1 else f"{{{','.join(column)}}}" for column in columns)
