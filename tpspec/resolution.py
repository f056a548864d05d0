"""What a spec comes to for one checkpoint or config, before tp is known, and the Layout for a tp."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tpspec import order
from tpspec.checkpoint import StoredTensor
from tpspec.dimensions import named
from tpspec.errors import Finding, TpspecError
from tpspec.faults import where_bound
from tpspec.language.schema import NO_PREFIX, Prefix
from tpspec.language.spec import PlacedRule, Spec
from tpspec.layout import MAX_TP, Layout, TensorLayout
from tpspec.padding import Pad
from tpspec.scope import ConfigScope
from tpspec.sharing import Sharing


@dataclass(frozen=True)
class Shared:
    """One tensor (or, from a config alone, one rule at some layers) and how it is shared.

    From a config alone it stands for `count` tensors that look alike, and `tensor` is what the spec says
    of them; None where it does not say their shape, or whether they are there.
    """

    placed: PlacedRule
    binding: Mapping[str, int]
    sharing: Sharing
    parameter: str = ""
    tensor: StoredTensor | None = None
    prefix: Prefix = NO_PREFIX
    count: int = 1


@dataclass(frozen=True, slots=True)
class Misfit:
    """A module that a tp does not divide: `source` (a config name) is `units`, `numbers` the division."""

    module: str
    tag: str
    source: str
    units: int
    numbers: str
    place: str

    def finding(self) -> Finding:
        """The misfit as a finding."""
        return Finding(self.module, f"{self.tag}, {self.source} = {self.units}: {self.numbers}", self.place)


@dataclass(frozen=True)
class Resolution:
    """Everything about a checkpoint (or a config) and its spec that does not depend on tp."""

    spec: Spec
    config: Mapping[str, Any]
    shared: tuple[Shared, ...]
    ranges: Mapping[str, range]
    findings: tuple[Finding, ...]
    ignored: tuple[str, ...] = ()
    pad: Pad | None = None

    def scope(self, tp: int | None = None) -> ConfigScope:
        """What the spec's expressions see at a tp, padding included."""
        return ConfigScope(self.spec, self.config, tp, self.pad)

    @cached_property
    def _distinct(self) -> tuple[Sharing, ...]:
        return tuple(dict.fromkeys(item.sharing for item in self.shared))

    def misfits(self, tp: int) -> list[Misfit]:
        """The modules that tp does not divide, layers joined, in the order of the spec."""
        found: dict[tuple[PlacedRule, Prefix, str, _Broken], list[Mapping[str, int]]] = defaultdict(list)
        reasons = {sharing: _broken(sharing, tp) for sharing in self._distinct}
        widest: dict[tuple[object, ...], tuple[Shared, _Broken]] = {}
        for item in self.shared:
            broken = reasons[item.sharing]
            if broken:
                key = (id(item.placed), item.prefix, *item.binding.values())
                known = widest.get(key)
                widest[key] = (item, broken) if not known or broken.units > known[1].units else known
        for item, broken in widest.values():
            found[item.placed, item.prefix, _named(item), broken].append(item.binding)
        misfits = []
        for (placed, prefix, parameter, broken), bindings in found.items():
            module = prefix.put(where_bound(placed.pattern, bindings, self.ranges)) + parameter
            misfits.append(Misfit(module, placed.rule.described(), *broken, placed.place))
        places = {placed.place: i for i, placed in enumerate(self.spec.rules)}
        return sorted(misfits, key=lambda misfit: places[misfit.place])

    def fits(self, tp: int) -> bool:
        """Whether every tensor can be shared among tp ranks."""
        return all(sharing.fits(tp) for sharing in self._distinct)

    @cached_property
    def valid_tp(self) -> tuple[int, ...]:
        """Every tp that works, up to the number of units of the axis that divides last."""
        axes = [axis for sharing in self._distinct for axis in sharing.axes if not axis.replicate]
        units = [axis.units for axis in axes if self.pad or not axis.pad]
        return tuple(tp for tp in range(1, min([*units, MAX_TP]) + 1) if self.fits(tp))

    @cached_property
    def copied_above(self) -> tuple[tuple[str, int], ...]:
        """The axes whose units are copied, and the tp above which they are, in some layer at least."""
        units: dict[str, int] = {}
        for axis in (axis for sharing in self._distinct for axis in sharing.axes if axis.replicate):
            units[axis.name] = min(axis.units, units.get(axis.name, axis.units))
        return tuple(units.items())

    def copies(self, tp: int) -> dict[str, int]:
        """The axes whose units are copied, and how often each stands on the ranks, in some layer at least."""
        found: dict[str, int] = {}
        for axis in (axis for sharing in self._distinct for axis in sharing.axes if axis.copies(tp) > 1):
            found[axis.name] = max(axis.copies(tp), found.get(axis.name, 1))
        return found

    def check(self, tp: int, *, or_pad: bool = False, valid: Sequence[int] | None = None) -> None:
        """Raises TpspecError with every finding where there is any.

        `or_pad`: padding would help. `valid`: the sizes that work, where those without padding differ.
        """
        if self.findings:
            raise TpspecError(f"the checkpoint does not match {self.spec.where}", self.findings)
        misfits = self.misfits(tp)
        if misfits:
            sizes = ", ".join(map(str, self.valid_tp if valid is None else valid))
            findings = [misfit.finding() for misfit in misfits]
            remedy = f"valid tp: {sizes}{'   or: --pad' if or_pad else ''}"
            raise TpspecError(f"tp={tp} does not fit", findings, remedy)

    def layout(self, tp: int) -> Layout:
        """The Layout of a checkpoint whose headers were read. Raises TpspecError as `check` does."""
        self.check(tp)
        cuts = {sharing: sharing.cut(tp) for sharing in self._distinct if not sharing.apart}
        tensors, extras = {}, list(self.ignored)
        for item in self.shared:
            assert item.tensor is not None
            name, sharing = item.tensor.name, item.sharing
            if sharing.apart:
                extras.append(name)
                continue
            rule = f"{item.placed.rule.described()} ({item.placed.place})"
            tensors[name] = TensorLayout(name, item.tensor.dtype, item.tensor.shape, cuts[sharing], rule)
        ordered = order.rank_file_order(self.spec, list(tensors.values()))
        order_of = self.pad.order if self.pad else None
        held = {tensor.name: tensor for tensor in ordered}
        return Layout(tp, self.spec.name, held, tuple(extras), order_of)


class _Broken(NamedTuple):
    source: str
    units: int
    numbers: str


def _broken(sharing: Sharing, tp: int) -> _Broken | None:
    if sharing.bits and tp > 1:
        numbers = f"{sharing.bits} % 8 = {sharing.bits % 8}, a cut through bytes"
        return _Broken("bits of an element", sharing.bits, numbers)
    misfit = sharing.misfit(tp)
    if misfit:
        axis, numbers = misfit
        return _Broken(axis.source, axis.units, numbers)
    edge = sharing.split_block(tp)
    if edge is None:
        return None
    block = sharing.divisor
    return _Broken(sharing.label, block, f"{edge} % {block} = {edge % block}")


def _named(item: Shared) -> str:
    """What follows a module's name where one of its tensors is at fault: a scale, or its packed weight."""
    if item.sharing.divisor == 1 and not item.sharing.bits:
        return ""
    return named("", item.parameter)
