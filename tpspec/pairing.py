"""Vectors that look cut by what surrounds them, but are tagged replicated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpspec.axes import Axis
    from tpspec.resolution import Shared


def suspicious_vectors(shared: Iterable[Shared]) -> Iterator[tuple[Shared, str, str]]:
    """Replicated vectors as long as an axis that their block cuts, with the problem and a remedy.

    A norm over all heads (OLMo-2's q_norm) sits between a column-parallel matrix and a row-parallel
    one: its weight has to be cut, and its statistics summed. A rule that says the size
    (`replicated: hidden_size`) is taken at its word.
    """
    blocks: dict[str, dict[int, Axis]] = defaultdict(dict)
    vectors: list[tuple[str, Shared]] = []
    for item in shared:
        assert item.tensor is not None
        block = item.tensor.name.removesuffix(f".{item.parameter}").rpartition(".")[0]
        if item.sharing.parts and item.parameter in ("", "weight"):
            for part in item.sharing.parts:
                if part.axis and part.width == part.axis.width > 1:
                    blocks[block][part.size] = part.axis
        elif (
            item.placed.rule.replicated is True and len(item.tensor.shape) == 1 and item.parameter == "weight"
        ):
            vectors.append((block, item))
    for block, item in vectors:
        assert item.tensor is not None
        axis = blocks[block].get(item.tensor.shape[0])
        if axis:
            problem = (
                f"replicated, but its {item.tensor.shape[0]} elements are the {axis.units} × {axis.width} "
                f"of axis '{axis.name}', which is cut around it"
            )
            cut = f"cut it ({{column: {axis.name}, norm: {{kind: rms}}}}), or say its size (replicated: EXPR)"
            yield item, problem, cut
