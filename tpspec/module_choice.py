"""Which modules a quantization's settings keep plain, and which they store in a way of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tpspec.errors import TpspecError

Settings = Mapping[str, Any]
Names = tuple[str, ...]
"""What one module may be called: with each prefix that checkpoints put before its name."""

CLASSES = {"Linear", "torch.nn.Linear", "FusedMoE", "RoutedExperts"}
"""Classes that stand for every matrix here; a spec does not know any other."""
MAX_PATTERN = 1000
_REPEATED_GROUP = re.compile(r"\)[*+{]")
MAX_REPEATS = 6


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression of a config, which nobody vouches for: one that could run for hours is refused."""
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if len(pattern) > MAX_PATTERN or repeats > MAX_REPEATS or _REPEATED_GROUP.search(pattern):
        raise TpspecError(f"config.json: the regular expression '{pattern[:60]}' is too involved to be tried")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TpspecError(f"config.json: '{pattern[:60]}' is no regular expression: {error}") from None


def texts(value: Any, what: str) -> tuple[str, ...]:
    """A list of names out of the settings, lists in it flattened. Raises TpspecError for anything else."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise TpspecError(f"config.json: {what} is not a list of module names")
    return tuple(text for item in value for text in texts(item, what))


def as_modules(entries: Sequence[str]) -> Callable[[str], bool]:
    """How transformers reads `modules_to_not_convert`: start of a name, regular expression, or end."""
    patterns = [
        _compiled(rf"(?:{entry})(?:(?<=\.)|(?=\.|$))") for entry in entries if not entry.isidentifier()
    ]
    starts, ends = frozenset(entries), tuple(entries)

    def match(name: str) -> bool:
        parents = name.split(".")
        return (
            name.endswith(ends)
            or any(".".join(parents[:n]) in starts for n in range(1, len(parents) + 1))
            or any(pattern.match(name) for pattern in patterns)
        )

    return match


def as_targets(entries: Sequence[str]) -> Callable[[str], bool]:
    """How compressed-tensors reads `ignore` and `targets`: names, `re:` expressions and classes."""
    return lambda name: target_rank(entries, name) is not None


def target_rank(entries: Iterable[str], name: str) -> int | None:
    """How closely targets name a module: 0 by its name, 1 by an expression, 2 by its class."""
    ranks = []
    for entry in entries:
        if entry == name:
            ranks.append(0)
        elif entry.startswith("re:") and _compiled(entry[3:]).match(name):
            ranks.append(1)
        elif entry in CLASSES:
            ranks.append(2)
    return min(ranks, default=None)


def as_globs(entries: Sequence[str]) -> Callable[[str], bool]:
    """How ModelOpt reads `exclude_modules`: names with `*`, of a module or of one above it."""

    def match(name: str) -> bool:
        parents = name.split(".")
        above = [".".join(parents[:n]) for n in range(1, len(parents) + 1)]
        return any(fnmatchcase(each, entry) for entry in entries for each in above)

    return match


def as_pieces(entries: Sequence[str]) -> Callable[[str], bool]:
    """How AutoAWQ reads `modules_to_not_convert`: any piece of a name."""
    return lambda name: any(entry in name for entry in entries)


def of_groups(groups: Any, settings: Settings, names: Names) -> Settings | None:
    """compressed-tensors: the group that names the module most closely; None where none does."""
    best: tuple[int, Settings] | None = None
    for group in _mapping(groups, "config_groups").values():
        entries = texts(_mapping(group, "config_groups").get("targets"), "targets")
        for name in names:
            rank = target_rank(entries, name)
            if rank is not None and (best is None or rank < best[0]):
                best = rank, group
    return best and over(settings, best[1])


def of_dynamic(rules: Any, settings: Settings, names: Names) -> Settings | None:
    """GPTQModel's `dynamic`: the first expression that a name begins with; None where it says `-:`."""
    for pattern, values in _mapping(rules, "dynamic").items():
        expression = _compiled(pattern.removeprefix("-:").removeprefix("+:"))
        if any(expression.match(name) for name in names):
            return None if pattern.startswith("-:") else over(settings, _mapping(values, "dynamic"))
    return settings


def of_layers(layers: Any, settings: Settings, names: Names, *, others: bool) -> Settings | None:
    """Settings by a module's own name; what is not named is as `others`, or plain."""
    named = _mapping(layers, "the settings of modules")
    found = next((named[name] for name in names if name in named), None)
    if found is None:
        return settings if others else None
    return over(settings, _mapping(found, "the settings of a module"))


def over(settings: Settings, own: Settings) -> Settings:
    """The settings with a module's own on top."""
    return {**settings, **{key: value for key, value in own.items() if value is not None}}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TpspecError(f"config.json: {what} is not an object")
    return value
