"""Collecting findings, so that eighty layers with one fault make one line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tpspec.dimensions import named
from tpspec.errors import Finding
from tpspec.language.patterns import Pattern, skeleton_of

_Key = tuple[str, Pattern | None, str, str, str]


class Faults:
    """Faults of modules by rule, each with the bindings at which it was found.

    A range that a binding leaves out stands for all its numbers, as `ranges` gives them.
    """

    def __init__(self, ranges: Mapping[str, range]) -> None:
        self.ranges = ranges
        self._found: dict[_Key, list[Mapping[str, int]]] = defaultdict(list)

    def add(
        self,
        subject: Pattern | str,
        problem: str,
        place: str = "",
        remedy: str = "",
        binding: Mapping[str, int] | None = None,
        parameter: str = "",
    ) -> None:
        """Notes one fault; the same fault at other bindings joins it."""
        what = subject if isinstance(subject, str) else named("", parameter)
        pattern = None if isinstance(subject, str) else subject
        self._found[what, pattern, problem, place, remedy].append(binding or {})

    def __bool__(self) -> bool:
        return bool(self._found)

    def findings(self) -> list[Finding]:
        """One finding for each fault, the bindings as ranges in the module's name.

        Tensors that no pattern names are joined where they have the same fault in all layers, experts, ….
        """
        found: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for (what, pattern, problem, place, remedy), bindings in self._found.items():
            name = where_bound(pattern, bindings, self.ranges) + what if pattern else what
            found[name if pattern else skeleton_of(name)[0], problem, place, remedy].append(name)
        return [Finding(name, *said) for (_, *said), names in found.items() for name in _joined(names)]


def where_bound(
    pattern: Pattern, bindings: Sequence[Mapping[str, int]], ranges: Mapping[str, Iterable[int]]
) -> str:
    """The template with each range name replaced by the numbers it took, `0-79` or `0,2,5-7`."""
    text = pattern.template
    for name in pattern.variables:
        numbers = {binding[name] for binding in bindings if name in binding}
        text = text.replace(f"{{{name}}}", spans(numbers or ranges[name]))
    return text


def _joined(names: Sequence[str]) -> Sequence[str]:
    """Names that differ in their numbers as one, where all combinations of those are among them."""
    places = [set(place) for place in zip(*(skeleton_of(name)[1] for name in names), strict=True)]
    return list(labels(names).values())[:1] if prod(map(len, places)) == len(names) else names


def spans(numbers: Iterable[int]) -> str:
    """Numbers as spans: {0, 1, 2, 5} is `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def labels(names: Iterable[str]) -> dict[str, str]:
    """Each name with its numbers replaced by all that stand there: `model.layers.0-29.mlp`."""
    alike: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for name in names:
        skeleton, numbers = skeleton_of(name)
        alike[skeleton][name] = numbers
    found: dict[str, str] = {}
    for skeleton, members in alike.items():
        label = skeleton
        for place in zip(*members.values(), strict=True):
            label = label.replace("#", spans(map(int, place)), 1)
        found |= dict.fromkeys(members, label)
    return found
