"""The shard map: tensors that are cut alike, and which part of them each rank holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tpspec.errors import TpspecError
from tpspec.faults import where_bound
from tpspec.language.spec import PlacedRule
from tpspec.layout import Cut, TensorLayout
from tpspec.resolution import Resolution, Shared
from tpspec.sharing import Sharing


@dataclass(frozen=True)
class MapRow:
    """Tensors of one rule with one shape. From a config alone, `tensor` is None and the cut says all."""

    name: str
    tag: str
    place: str
    cut: Cut | None
    count: int
    tensor: TensorLayout | None = None

    def held(self, rank: int) -> list[str]:
        """The indices that a rank holds, `[512:640]` rows or `[:, 512:640]` columns, or `2 zeros`."""
        if self.cut is None:
            return ["no rank"]
        share = self.cut.shares[rank]
        if share is None:
            return ["not held"]
        if self.cut.dim is None:
            return ["whole" if share[0].source is not None else "zeros"]
        before = ":, " * self.cut.dim
        return [f"{n} zeros" if source is None else f"[{before}{source}:{source + n}]" for source, n in share]

    def as_json(self) -> dict[str, Any]:
        """The row for machines: each rank's share as [source or null, length] pairs."""
        cut, tensor = self.cut, self.tensor
        return {
            "name": self.name,
            "tag": self.tag,
            "place": self.place,
            "tensors": self.count,
            "dtype": tensor.dtype if tensor else None,
            "shape": list(tensor.shape) if tensor else None,
            "dim": cut.dim if cut else None,
            "shares": [None if share is None else [list(s) for s in share] for share in cut.shares]
            if cut
            else None,
            "local_shapes": [list(tensor.local_shape(r)) for r in range(cut.tp)] if tensor and cut else None,
        }


def shard_map(resolution: Resolution, tp: int, modules: str | None = None) -> list[MapRow]:
    """The map for a tp, in the order of the spec; `modules` is a shell pattern of names.

    Raises TpspecError where tp does not fit.
    """
    resolution.check(tp)
    rows = list(_rows(resolution, tp, modules))
    if not rows:
        raise TpspecError(f"no module matches '{modules}'", remedy="list them with `tpspec show PATH --tp N`")
    return rows


def _rows(resolution: Resolution, tp: int, modules: str | None) -> Iterator[MapRow]:
    groups: dict[tuple[Any, ...], list[Shared]] = defaultdict(list)
    positions: Mapping[str, int] = {placed.place: i for i, placed in enumerate(resolution.spec.rules)}
    for item in resolution.shared:
        stored = (item.tensor.dtype, item.tensor.shape) if item.tensor else None
        groups[item.placed, item.prefix, item.parameter, item.sharing, stored].append(item)
    for (placed, _, parameter, sharing, _), items in sorted(
        groups.items(), key=lambda entry: (positions[entry[0][0].place], entry[0][2] != "weight")
    ):
        chosen = [item for item in items if modules is None or _matches(item, modules)]
        if chosen:
            yield _row(resolution, placed, parameter, sharing, chosen, tp)


def _matches(item: Shared, modules: str) -> bool:
    name = item.tensor.name if item.tensor else item.placed.template
    return fnmatchcase(name, modules) or fnmatchcase(name.removesuffix(f".{item.parameter}"), modules)


def _row(
    resolution: Resolution, placed: PlacedRule, parameter: str, sharing: Sharing, items: list[Shared], tp: int
) -> MapRow:
    bound = where_bound(placed.pattern, [item.binding for item in items], resolution.ranges)
    name = items[0].prefix.put(bound)
    if parameter:
        name = f"{name.removesuffix('.**')}.{parameter}"
    cut = None if sharing.apart else sharing.cut(tp)
    stored = items[0].tensor
    tensor = TensorLayout(stored.name, stored.dtype, stored.shape, cut) if stored and cut else None
    return MapRow(name, placed.rule.described(), placed.place, cut, len(items), tensor)
