"""What padding comes to at one tp: which units were added or copied, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tpspec.axes import Axis
from tpspec.cache import CacheBytes, cache_dtype, cache_size
from tpspec.dtypes import nbytes
from tpspec.errors import TpspecError
from tpspec.language.schema import CacheEntry
from tpspec.layout import TensorLayout
from tpspec.resolution import Resolution, Shared


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """An axis that is filled up: `units` in the model (`source` in its config), `held` by all ranks together.

    Of those that are held each unit stands `copies` times, and `zeros` are zeros; none are where copies
    of KV heads alone make the number divide.
    """

    axis: str
    source: str
    units: int
    held: int
    copies: int

    @property
    def zeros(self) -> int:
        return self.held - self.units * self.copies


@dataclass(frozen=True, slots=True)
class Padding:
    """What padding costs, over all ranks, in bytes.

    `weight_bytes` is what the ranks hold of the tensors that are cut beyond the stored ones: zeros, and
    copies of KV heads; None where no tensor's size is known. `cache` is what they keep beyond one copy of
    what the whole model keeps, in those parts that are padded or copied.
    """

    order: str
    axes: tuple[PaddedAxis, ...]
    stored_bytes: int | None
    weight_bytes: int | None
    cache: CacheBytes

    def as_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {**asdict(self), "axes": [{**asdict(axis), "zeros": axis.zeros} for axis in self.axes]}


def padded(resolution: Resolution, tp: int, *, vocabulary: bool = True) -> Padding | None:
    """The padding of a model at a tp, with its vocabulary's or without; None where nothing is filled up."""
    items = [item for item in resolution.shared if vocabulary or item.placed.rule.tag != "vocab"]
    axes = list(_padded_axes(resolution, items, tp))
    if resolution.pad is None or not axes:
        return None
    stored, held = _weights(items, tp)
    extra = held - stored if stored else None
    names = {axis.axis for axis in axes} | resolution.copies(tp).keys()
    return Padding(resolution.pad.order, tuple(axes), stored or None, extra, _cache(resolution, tp, names))


def padding_of(resolution: Resolution, tp: int) -> Padding:
    """The padding of a model that needs some, its vocabulary aside.

    Raises TpspecError where tp divides it as it is.
    """
    found = padded(resolution, tp, vocabulary=False)
    if found is None:
        raise TpspecError(f"tp={tp} divides this model: nothing has to be padded", remedy="use it as it is")
    return found


def _padded_axes(resolution: Resolution, items: Sequence[Shared], tp: int) -> Iterator[PaddedAxis]:
    """Each axis that has zero units in some layer, or would not divide without, once for each size."""
    seen: dict[tuple[str, int], Axis] = {}
    for item in items:
        for axis in item.sharing.axes:
            seen.setdefault((axis.name, axis.units), axis)
    order = list(resolution.spec.axes)
    for axis in sorted(seen.values(), key=lambda axis: order.index(axis.name)):
        found = PaddedAxis(axis.name, axis.source, axis.units, axis.local(tp) * tp, axis.copies(tp))
        if found.zeros or replace(axis, pad=False).misfit(tp):
            yield found


def _weights(items: Sequence[Shared], tp: int) -> tuple[int, int]:
    """Bytes of the tensors that are cut: as they are stored, and as the ranks hold them."""
    stored = held = 0
    for item in items:
        if item.tensor is not None and item.sharing.dim is not None and not item.sharing.apart:
            tensor, cut = item.tensor, item.sharing.cut(tp)
            layout = TensorLayout(tensor.name, tensor.dtype, tensor.shape, cut)
            stored += item.count * nbytes(tensor.dtype, tensor.shape)
            held += item.count * sum(layout.local_bytes(rank) for rank in range(tp))
    return stored, held


def _cache(resolution: Resolution, tp: int, padded_axes: set[str]) -> CacheBytes:
    """Bytes that all ranks keep beyond the whole model's, in the cache entries that count padded units."""
    spec, config = resolution.spec, resolution.config
    counting = replace(spec, cache=tuple(entry for entry in spec.cache if _counts(entry, padded_axes)))
    width = cache_dtype(config)[1]
    ranks = cache_size(counting, config, tp, resolution.pad).in_bytes(width)
    whole = cache_size(counting, config, 1).in_bytes(width)
    return CacheBytes(
        tp * ranks.per_token - whole.per_token,
        {window: tp * count - whole.windows.get(window, 0) for window, count in ranks.windows.items()},
        tp * ranks.per_sequence - whole.per_sequence,
    )


def _counts(entry: CacheEntry, axes: set[str]) -> bool:
    return any(size is not None and size.axes & axes for size in (entry.per_token, entry.per_sequence))
