"""Padding: what is filled up with zero units where a tp does not divide, and how the units are placed.

A padded model gives the same numbers: a zero unit's rows are zeros, and so are the columns of the
row-parallel matrix that it goes into. What is decided here is data; `axes.shares` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import lcm, prod
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from tpspec.language.spec import PlacedRule
    from tpspec.rules import Rules
    from tpspec.sharing import Sharing

Order = Literal["kv", "weights"]
"""What is kept small first: the KV slots of a rank, or its weights."""
ORDERS: tuple[Order, ...] = get_args(Order)
MAX_COPIES = 4096
"""More copies of a KV head than this are not considered."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two axes that are padded together: `groups` units (KV heads), `members` units (query heads) of each.

    A group brings `group_rows` rows of weights, a member `member_rows`. Groups are copied where
    `copied`; members come in multiples of `multiple`. `full`: no slot holds some of a group's members and
    zeros, for which there is nothing to store.
    """

    groups: int
    members: int
    group_rows: int = 1
    member_rows: int = 1
    copied: bool = True
    multiple: int = 1
    order: Order = "kv"
    full: bool = False

    def takes(self, copies: int) -> bool:
        """Whether a group's members may be shared among so many copies of it."""
        return not self.full or self.members % (copies * self.multiple) == 0


class Slots(NamedTuple):
    """What each rank holds: `per_rank` slots for groups, each with `members` members.

    A group fills `copies` slots, one after another; each has its own part of the group's members.
    """

    per_rank: int
    copies: int
    members: int


@lru_cache(maxsize=4096)
def slots(pair: Pair, tp: int) -> Slots:
    """The cheapest slots: fewest per rank and then fewest weights, or the other way round.

    Of equally cheap ones those with the fewest copies. `copies × groups <= tp × per_rank` always. A `full`
    pair that takes not even one copy is a misfit, see Axis.
    """
    most = min(pair.members, MAX_COPIES) if pair.copied else 1

    def cost(choice: Slots) -> tuple[int, int, int]:
        rows = choice.per_rank * (pair.group_rows + choice.members * pair.member_rows)
        first, second = (choice.per_rank, rows) if pair.order == "kv" else (rows, choice.per_rank)
        return first, second, choice.copies

    taken = [copies for copies in range(1, most + 1) if pair.takes(copies)]
    return min((_slots(pair, copies, tp) for copies in taken or [1]), key=cost)


def _slots(pair: Pair, copies: int, tp: int) -> Slots:
    per_rank = -(-copies * pair.groups // tp)
    members = -(-pair.members // copies // pair.multiple) * pair.multiple
    return Slots(per_rank, copies, members)


@dataclass(frozen=True, slots=True)
class Pad:
    """How a model is padded at any tp: the order, and what the axes of its spec weigh and have to keep to.

    `rows` gives the rows (or columns) of weights that one unit of an axis brings, in all layers together;
    `multiples` how many units at a time a rank may hold of it (a quantization group's). `full` are the axes
    of which zero units, as stored, would not be zeros. A single axis that tp does not divide is padded to
    `align` units per rank.
    """

    order: Order
    rows: Mapping[str, int]
    multiples: Mapping[str, int]
    full: frozenset[str] = frozenset()
    align: int = 1


def decide(rules: Rules, order: Order, align: int = 1, seen: Collection[Sharing] = ()) -> Pad:
    """Weighs the axes of a spec for one config. What a rule cannot compute is left to who reports it.

    `seen` are the sharings of a checkpoint's tensors, of which more may be quantized than the config says.
    """
    rows: Counter[str] = Counter()
    told: set[Sharing] = set()
    forms: dict[str, str] = {}
    for placed in rules.scope.spec.rules:
        other_form = placed.form and forms.setdefault(*placed.form) != placed.form[1]
        if other_form or placed.rule.norm:
            continue
        for sharing, times in _sharings(rules, placed):
            told.add(sharing)
            for axis, part in sharing.named_parts:
                rows[axis] += part.width * times * sharing.blocks
    multiples: dict[str, int] = {}
    full: set[str] = set()
    for sharing in told.union(seen):
        for axis, part in sharing.named_parts:
            multiples[axis] = lcm(multiples.get(axis, 1), sharing.granule(part))
            full |= {axis} if sharing.full else set()
    return Pad(order, rows, multiples, frozenset(full), align)


def _sharings(rules: Rules, placed: PlacedRule) -> Iterator[tuple[Sharing, int]]:
    """The ways in which a rule's matrices are shared, and how many matrices the model has of each."""
    scope, free = rules.scope, rules.free(placed)
    times = prod(len(scope.range(name)) for name in placed.pattern.variables if name not in free)
    for binding in scope.bindings(free):
        with suppress(ValueError):
            if rules.applies(placed, binding):
                yield rules.sharing(placed, binding, "weight", None), times
