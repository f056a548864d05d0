"""Which rule each stored tensor belongs to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from fnmatch import translate
from typing import NamedTuple

from tpspec.language.patterns import Binding, skeleton_of
from tpspec.language.schema import Prefix
from tpspec.language.spec import PlacedRule, Spec


class Match(NamedTuple):
    """A rule that names a tensor. `parameter` is the tensor's name within a module.

    Of a bare parameter it is empty, or what is stored under its name and more (`_scales`).
    """

    placed: PlacedRule
    binding: Binding
    parameter: str
    prefix: Prefix


class Matcher:
    """Finds the rules of a spec by tensor name, one dictionary lookup per name."""

    def __init__(self, spec: Spec, parameters: Collection[str], ranges: Mapping[str, range]) -> None:
        self.spec = spec
        self.ranges = ranges
        self.parameters = frozenset({"weight", *parameters})
        self._suffixes = tuple(p.removeprefix("weight") for p in parameters if p.startswith("weight_"))
        self._exact: dict[str, list[PlacedRule]] = defaultdict(list)
        self._subtrees: list[tuple[re.Pattern[str], PlacedRule]] = []
        for placed in spec.rules:
            if placed.pattern.subtree:
                stem = re.escape(placed.pattern.skeleton).replace(r"\#", "#").replace("#", r"(\d+)")
                self._subtrees.append((re.compile(stem + r"\.(.+)"), placed))
            else:
                self._exact[placed.pattern.skeleton].append(placed)
        self._ignored = re.compile("|".join(map(translate, spec.ignore)) or r"(?!)")

    def ignored(self, name: str) -> bool:
        """Whether the spec names the tensor as one that nothing needs."""
        return any(self._ignored.match(stripped) for stripped, _ in self.spec.names_of(name))

    def matches(self, name: str) -> list[Match]:
        """All rules that name the tensor; subtree rules only where no other does.

        A rule whose ranges do not reach the tensor's numbers counts only where nothing else names it.
        """
        found = [
            match for stripped, prefix in self.spec.names_of(name) for match in self._named(stripped, prefix)
        ]
        inside = [match for match in found if self._inside(match)]
        if inside:
            return inside
        below = [
            match for stripped, prefix in self.spec.names_of(name) for match in self._below(stripped, prefix)
        ]
        return [match for match in below if self._inside(match)] or found or below

    def _inside(self, match: Match) -> bool:
        return all(value in self.ranges[name] for name, value in match.binding)

    def _named(self, name: str, prefix: Prefix) -> Iterator[Match]:
        skeleton, numbers = skeleton_of(name)
        yield from self._bind(skeleton, numbers, "", prefix)
        module, _, parameter = name.rpartition(".")
        if parameter in self.parameters:
            skeleton, numbers = skeleton_of(module)
            yield from self._bind(skeleton, numbers, parameter, prefix)
        for suffix in self._suffixes:
            if name.endswith(suffix):
                skeleton, numbers = skeleton_of(name.removesuffix(suffix))
                yield from self._bind(skeleton, numbers, suffix, prefix)

    def _bind(self, skeleton: str, numbers: list[str], parameter: str, prefix: Prefix) -> Iterator[Match]:
        for placed in self._exact.get(skeleton, ()):
            binding = placed.pattern.match(numbers)
            if binding is not None:
                yield Match(placed, binding, parameter, prefix)

    def _below(self, name: str, prefix: Prefix) -> Iterator[Match]:
        for regex, placed in self._subtrees:
            hit = regex.fullmatch(name)
            if hit:
                *numbers, rest = hit.groups()
                binding = placed.pattern.match(numbers)
                if binding is not None:
                    yield Match(placed, binding, rest, prefix)
