"""The shard map: tensors that are cut alike, and which part of them each rank holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from tpspec.axes import Axis
from tpspec.dimensions import named
from tpspec.errors import TpspecError
from tpspec.faults import where_bound
from tpspec.language.spec import PlacedRule
from tpspec.layout import Cut, TensorLayout
from tpspec.resolution import Resolution, Shared
from tpspec.scope import ConfigScope
from tpspec.sharing import Sharing


@dataclass(frozen=True)
class MapRow:
    """Tensors of one rule with one shape. From a config alone, `tensor` is None and the cut says all."""

    name: str
    tag: str
    place: str
    cut: Cut | None
    count: int
    sharing: Sharing
    heads: tuple[tuple[str, Axis], ...] = ()
    """Axes of heads that the row is made of, each with the axis of the KV heads that they belong to."""
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
    heads = _Heads(resolution)
    positions: Mapping[str, int] = {placed.place: i for i, placed in enumerate(resolution.spec.rules)}
    for item in (each for shared in resolution.shared for each in heads.apart(shared)):
        stored = (item.tensor.dtype, item.tensor.shape) if item.tensor else None
        key = (item.placed, item.prefix, item.parameter, item.sharing, heads.of(item), stored)
        groups[key].append(item)
    for (placed, _, parameter, sharing, kv, _), items in sorted(
        groups.items(), key=lambda entry: (positions[entry[0][0].place], entry[0][2] != "weight")
    ):
        chosen = [item for item in items if modules is None or _matches(item, modules)]
        if chosen:
            yield _row(resolution, placed, parameter, sharing, kv, chosen, tp)


def _matches(item: Shared, modules: str) -> bool:
    name = item.tensor.name if item.tensor else item.placed.template
    return fnmatchcase(name, modules) or fnmatchcase(name.removesuffix(f".{item.parameter}"), modules)


class _Heads:
    """Which KV heads a tensor's heads belong to, in its layer; an axis without KV heads groups itself."""

    def __init__(self, resolution: Resolution) -> None:
        spec = resolution.spec
        self._scope = ConfigScope(spec, resolution.config)
        self._kv = {axis.groups: name for name, axis in spec.axes.items() if axis.groups}
        cut_in_heads = {part.axis for p in spec.rules if p.rule.tag == "qkv-head" for part in p.rule.parts}
        self._known = cut_in_heads.union(self._kv, self._kv.values())
        self._memo: dict[tuple[object, ...], Axis] = {}

    def apart(self, item: Shared) -> Iterator[Shared]:
        """The item, from a config alone one for each layer where its KV heads differ between layers."""
        free = {name for axis in self._named(item) for name in self._scope.free_of_axis(self._kv_of(axis))}
        among = [name for name in item.placed.pattern.variables if name in free - item.binding.keys()]
        for binding in self._scope.bindings(among):
            alike = item.count // prod(len(self._scope.range(name)) for name in among)
            yield replace(item, binding={**item.binding, **binding}, count=alike)

    def of(self, item: Shared) -> tuple[tuple[str, Axis], ...]:
        """The row's axes of heads, each with its KV heads."""
        return tuple((name, self._axis(self._kv_of(name), item.binding)) for name in self._named(item))

    def _named(self, item: Shared) -> list[str]:
        return [axis.name for axis in item.sharing.axes if axis.name in self._known]

    def _kv_of(self, name: str) -> str:
        return self._kv.get(name, name)

    def _axis(self, name: str, binding: Mapping[str, int]) -> Axis:
        key = (name, *(binding.get(free) for free in self._scope.free_of_axis(name)))
        if key not in self._memo:
            self._memo[key] = self._scope.axis(name, binding)
        return self._memo[key]


def _row(
    resolution: Resolution,
    placed: PlacedRule,
    parameter: str,
    sharing: Sharing,
    heads: tuple[tuple[str, Axis], ...],
    items: list[Shared],
    tp: int,
) -> MapRow:
    bound = where_bound(placed.pattern, [item.binding for item in items], resolution.ranges)
    name = items[0].prefix.put(bound)
    if parameter:
        name = named(name.removesuffix(".**"), parameter)
    cut = None if sharing.apart else sharing.cut(tp)
    stored = items[0].tensor
    tensor = TensorLayout(stored.name, stored.dtype, stored.shape, cut) if stored and cut else None
    return MapRow(
        name,
        placed.rule.described(),
        placed.place,
        cut,
        sum(item.count for item in items),
        sharing,
        heads,
        tensor,
    )
