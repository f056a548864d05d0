"""What is known of an architecture when a spec is drafted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_NUMBER = re.compile(r"\d+\Z")

Shape = tuple[int, ...]


def template_of(name: str) -> tuple[str, int | None]:
    """A name with its numbers as ranges, and the layer that it belongs to.

    The first number is the layer's; one after `experts` an expert's; others stay as they are.
    """
    layer: int | None = None
    parts = name.split(".")
    for i, part in enumerate(parts):
        if not _NUMBER.match(part):
            continue
        if i and "expert" in parts[i - 1]:
            parts[i] = "{expert}"
        elif layer is None:
            layer, parts[i] = int(part), "{layer}"
    return ".".join(parts), layer


@dataclass(frozen=True)
class Observation:
    """The tensors of one model, by name, and its config's values."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Shape]

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Template → shape; of layers that differ, the first's."""
        found: dict[str, Shape] = {}
        for name, shape in self.tensors.items():
            found.setdefault(template_of(name)[0], shape)
        return found

    @cached_property
    def layers(self) -> dict[str, frozenset[int]]:
        """Template → the layers that have it."""
        found: dict[str, set[int]] = defaultdict(set)
        for name in self.tensors:
            template, layer = template_of(name)
            found[template] |= set() if layer is None else {layer}
        return {template: frozenset(layers) for template, layers in found.items()}


@dataclass(frozen=True)
class Evidence:
    """Models of one architecture, and what else is known of its code.

    The first observation is what the draft describes; the others have one config value changed.
    `reads` says of a module whether its input is its block's own (a row-parallel one's is not),
    `plan` what transformers' tensor parallel plan calls it, `kinds` its class, `attributes` the
    numbers that a block carries, in each observation; `widths` are keys that give an MLP's width
    though their names do not say so.
    """

    model_type: str
    observations: tuple[Observation, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    follows_heads: frozenset[str] = frozenset()
    reads: Mapping[str, bool] = field(default_factory=dict)
    plan: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    memory: tuple[Mapping[str, str], ...] = ()
    switches: Mapping[str, str] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[str, ...] = ()

    @property
    def first(self) -> Observation:
        return self.observations[0]

    @property
    def ran(self) -> bool:
        """Whether a model was built, or names and shapes are all there is."""
        return bool(self.tiny)
