"""What a rank keeps per token and per sequence, from the spec's `cache` entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpspec.dtypes import BITS, STORED_AS
from tpspec.errors import Finding, TpspecError
from tpspec.language.expressions import ExpressionError
from tpspec.language.schema import CacheEntry
from tpspec.language.spec import Spec
from tpspec.padding import Pad
from tpspec.scope import ConfigScope


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Elements that one rank keeps, over all layers.

    `per_token` grows with every token; `windows` maps a window (in tokens) to the elements per
    token of the layers that stop growing there; `per_sequence` is there once for a sequence, and so are
    `typed`, elements that have a type of their own (states in float32), by that type.
    """

    per_token: int
    windows: Mapping[int, int]
    per_sequence: int
    typed: Mapping[str, int] = field(default_factory=dict)

    @property
    def elements_per_sequence(self) -> int:
        """All that is there once for a sequence."""
        return self.per_sequence + sum(self.typed.values())

    def in_bytes(self, element: int, of_token: int | None = None) -> CacheBytes:
        """Bytes, where an element takes `element` of them, and `of_token` where it grows with tokens."""
        each = of_token or element
        typed = sum(count * BITS[STORED_AS[dtype]] // 8 for dtype, count in self.typed.items())
        windows = {window: count * each for window, count in self.windows.items()}
        return CacheBytes(self.per_token * each, windows, self.per_sequence * element + typed)


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes that one rank keeps, over all layers, as in CacheSize."""

    per_token: int
    windows: Mapping[int, int]
    per_sequence: int


def cache_size(spec: Spec, config: Mapping[str, Any], tp: int, pad: Pad | None = None) -> CacheSize:
    """The cache of one rank at a tp that fits. Raises TpspecError where it cannot be computed."""
    scope = ConfigScope(spec, config, tp, pad)
    per_token = per_sequence = 0
    windows: dict[int, int] = defaultdict(int)
    typed: dict[str, int] = defaultdict(int)
    for entry in spec.cache:
        # A cache is per layer, so an entry counts once for each layer even where no size names it.
        layers = scope.bindings(["layer"] if "layer" in spec.ranges else [])
        for binding in layers:
            try:
                if entry.when is not None and not scope.evaluate(entry.when, binding):
                    continue
                token, sequence, window = _sizes(scope, entry, binding)
            except ExpressionError as error:
                raise TpspecError(
                    "the cache cannot be computed", [Finding("cache", str(error), spec.where)]
                ) from None
            if entry.dtype:
                typed[entry.dtype] += sequence
            else:
                per_sequence += sequence
            if window:
                windows[window] += token
            else:
                per_token += token
    return CacheSize(per_token, dict(windows), per_sequence, dict(typed))


def _sizes(scope: ConfigScope, entry: CacheEntry, binding: Mapping[str, int]) -> tuple[int, int, int | None]:
    token = scope.count(entry.per_token, binding, least=0) if entry.per_token else 0
    sequence = scope.count(entry.per_sequence, binding, least=0) if entry.per_sequence else 0
    if entry.window is None or scope.evaluate(entry.window, binding) is None:
        return token, sequence, None
    return token, sequence, scope.count(entry.window, binding)


def cache_dtype(config: Mapping[str, Any]) -> tuple[str, int]:
    """The element type that config.json names for the model, and its bytes; bfloat16 where none is."""
    said = config.get("dtype") or config.get("torch_dtype")
    name = said if isinstance(said, str) and said in STORED_AS else "bfloat16"
    return name, BITS[STORED_AS[name]] // 8


def names_dtype(config: Mapping[str, Any]) -> bool:
    """Whether config.json names an element type that is known."""
    said = config.get("dtype") or config.get("torch_dtype")
    return isinstance(said, str) and said in STORED_AS
