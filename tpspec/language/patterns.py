"""Names with braces: `{k_proj,v_proj}` stands for each of them, `{layer}` for a range's numbers.

A tensor name is found by its skeleton, the name with every run of digits replaced by `#`, so that
matching 91,000 names against a spec is one dictionary lookup each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

_BRACES = re.compile(r"\{([^{}]*)\}")
_DIGITS = re.compile(r"\d+")
_VARIABLE = re.compile(r"[a-z_]+\Z")

Binding = tuple[tuple[str, int], ...]
"""Range names and their values, in the order in which the name has them."""


MAX_NAMES = 256


class PatternError(ValueError):
    """A name in a spec is not well formed."""


def expand(text: str) -> list[str]:
    """The names that alternatives stand for; range names stay in braces."""
    pieces: list[list[str]] = []
    end = 0
    for match in _BRACES.finditer(text):
        pieces.append([text[end : match.start()]])
        inside = match[1]
        pieces.append([item.strip() for item in inside.split(",")] if "," in inside else [match[0]])
        end = match.end()
    pieces.append([text[end:]])
    count = prod(map(len, pieces))
    if count > MAX_NAMES:
        raise PatternError(f"'{text[:60]}' stands for {count} names; one line may stand for {MAX_NAMES}")
    names = ["".join(choice) for choice in product(*pieces)]
    for name in names:
        if re.search(r"[{}]", _BRACES.sub("", name)):
            raise PatternError(f"'{text}' has unbalanced braces")
        if not name or ".." in name or name.startswith(".") or name.endswith("."):
            raise PatternError(f"'{text}' stands for the empty name '{name}'")
        for variable in _BRACES.findall(name):
            if not _VARIABLE.match(variable):
                raise PatternError(f"'{text}': '{{{variable}}}' is neither a range nor alternatives")
    return names


@dataclass(frozen=True, slots=True)
class Pattern:
    """One name of a spec: a template such as `model.layers.{layer}.mlp.down_proj`."""

    template: str
    skeleton: str
    slots: tuple[str, ...]
    subtree: bool

    @property
    def variables(self) -> tuple[str, ...]:
        """The range names of the template, in order."""
        return tuple(slot[1:-1] for slot in self.slots if slot.startswith("{"))

    def match(self, numbers: list[str]) -> Binding | None:
        """Binds range names to a name's runs of digits; None where a literal number differs."""
        binding: list[tuple[str, int]] = []
        for slot, number in zip(self.slots, numbers, strict=True):
            if slot.startswith("{"):
                if len(number) > 1 and number[0] == "0":
                    return None
                binding.append((slot[1:-1], int(number)))
            elif slot != number:
                return None
        return tuple(binding)

    def name(self, binding: Mapping[str, int]) -> str:
        """The template with its range names filled in."""
        return _BRACES.sub(lambda match: str(binding[match[1]]), self.template)


def compile_pattern(template: str) -> Pattern:
    """Compiles one expanded name; a trailing `.**` makes it stand for everything below."""
    subtree = template.endswith(".**")
    stem = template.removesuffix(".**")
    if "*" in stem:
        raise PatternError(f"'{template}': '**' stands at the end only, and '*' in `ignore` only")
    slots = tuple(match[0] for match in re.finditer(r"\{[^{}]*\}|\d+", stem))
    skeleton = _DIGITS.sub("#", _BRACES.sub("#", stem))
    if "##" in skeleton:
        raise PatternError(f"'{template}': a range stands next to a digit")
    return Pattern(template, skeleton, slots, subtree)


def skeleton_of(name: str) -> tuple[str, list[str]]:
    """A tensor name's skeleton and its runs of digits."""
    return _DIGITS.sub("#", name), _DIGITS.findall(name)
