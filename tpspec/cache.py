"""What a rank keeps per token and per sequence, from the spec's `cache` entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
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
    token of the layers that stop growing there; `per_sequence` is there once for a sequence.
    """

    per_token: int
    windows: Mapping[int, int]
    per_sequence: int


def cache_size(spec: Spec, config: Mapping[str, Any], tp: int, pad: Pad | None = None) -> CacheSize:
    """The cache of one rank at a tp that fits. Raises TpspecError where it cannot be computed."""
    scope = ConfigScope(spec, config, tp, pad)
    per_token = per_sequence = 0
    windows: dict[int, int] = defaultdict(int)
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
            per_sequence += sequence
            if window:
                windows[window] += token
            else:
                per_token += token
    return CacheSize(per_token, dict(windows), per_sequence)


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
