"""What proving a spec comes to, at one tp and for a layout."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tpspec.drafting.evidence import template_of
from tpspec.dtypes import nbytes
from tpspec.layout import Layout

BOUND = 1e-5
"""The relative error of a right cut stays below this, for sums in another order round otherwise."""
POSITIONS = re.compile(r"(?:^|[._])(?:pos|position|positions|wpe)(?:[._]|\Z)")


@dataclass(frozen=True)
class Proof:
    """What one tp gave. `error` is relative, and less than `bound`; the collectives are those of one pass.

    `rank_bytes` is what the rank files hold of tensors, `given` the bytes that rank 0 gave to collectives in
    all passes, by kind, and `kept` the elements that its cache has in the end.
    """

    tp: int
    error: float = float("inf")
    bound: float = BOUND
    counted: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    merged: bool = False
    failure: str = ""
    rank_bytes: tuple[int, ...] = ()
    given: Counter[str] = field(default_factory=Counter)
    kept: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything that the spec claims was seen."""
        return not self.failure

    def as_json(self) -> dict[str, Any]:
        """The proof for machines; an error without a number is null."""
        error = self.error if self.error != float("inf") else None
        counters = {
            "counted": dict(self.counted),
            "predicted": dict(self.predicted),
            "given": dict(self.given),
        }
        return {"holds": self.holds, **asdict(self), **counters, "error": error}


def held_whole(layout: Layout) -> tuple[float, list[str]]:
    """What each rank holds of the model's bytes in whole matrices, as a fraction, and of which modules.

    Position embeddings, which are looked up and not multiplied with, do not count.
    """
    sizes = {name: nbytes(tensor.dtype, tensor.shape) for name, tensor in layout.tensors.items()}
    whole = [
        name
        for name, tensor in layout.tensors.items()
        if tensor.rule.startswith("replicated") and len(tensor.shape) > 1 and not POSITIONS.search(name)
    ]
    modules = dict.fromkeys(template_of(name)[0].removesuffix(".weight") for name in whole)
    return sum(sizes[name] for name in whole) / sum(sizes.values()), list(modules)
