"""Which modules a quantization's settings keep plain, and which they store in a way of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any, NamedTuple

from tpspec.errors import TpspecError

Settings = Mapping[str, Any]
Names = tuple[str, ...]
"""What one module may be called: with each prefix that checkpoints put before its name."""
Chooser = Callable[[Names], "Settings | None"]
"""A module's own settings; None where it is stored plainly."""

CLASSES = {"Linear", "torch.nn.Linear", "FusedMoE", "RoutedExperts"}
"""Classes that stand for every matrix here; a spec does not know any other."""
DEEP = 3
"""Dots in a name that says where in the model a module is."""
MAX_PATTERN = 1000
MAX_REPEATS = 6
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_LITERAL = re.compile(r"[\w.]+")


def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression of a config, which nobody vouches for.

    Raises TpspecError for one that is none, or that could be tried for hours.
    """
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
        return (value,) if value else ()
    if not isinstance(value, (list, tuple)):
        raise TpspecError(f"config.json: {what} is not a list of module names")
    return tuple(text for item in value for text in texts(item, what))


def as_modules(entries: Sequence[str]) -> Callable[[str], bool]:
    """How transformers reads `modules_to_not_convert`: start of a name, regular expression, or end."""
    involved = [entry for entry in entries if not _LITERAL.fullmatch(entry)]
    patterns = [compiled(rf"(?:{entry})(?:(?<=\.)|(?=\.|$))") for entry in involved]
    # A name from the top of the model down is no end of another, and published lists have thousands of them.
    starts, ends = frozenset(entries), tuple(entry for entry in entries if entry.count(".") < DEEP)

    def match(name: str) -> bool:
        above = not starts.isdisjoint(_above(name))
        return above or name.endswith(ends) or any(pattern.match(name) for pattern in patterns)

    return match


def as_globs(entries: Sequence[str]) -> Callable[[str], bool]:
    """How ModelOpt reads `exclude_modules`: names with `*`, of a module or of one above it."""
    literal = frozenset(entry for entry in entries if _LITERAL.fullmatch(entry))
    wild = re.compile("|".join(translate(entry) for entry in entries if entry not in literal) or r"(?!)")

    def match(name: str) -> bool:
        above = _above(name)
        return not literal.isdisjoint(above) or any(wild.match(each) for each in above)

    return match


def as_pieces(entries: Sequence[str]) -> Callable[[str], bool]:
    """How AutoAWQ reads `modules_to_not_convert`: any piece of a name."""
    return lambda name: any(entry in name for entry in entries)


class Targets(NamedTuple):
    """How compressed-tensors reads `ignore` and `targets`: names, `re:` expressions and classes."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    all: bool

    @classmethod
    def of(cls, entries: Sequence[str]) -> Targets:
        patterns = tuple(compiled(entry[3:]) for entry in entries if entry.startswith("re:"))
        return cls(frozenset(entries), patterns, not CLASSES.isdisjoint(entries))

    def rank(self, names: Names) -> int | None:
        """How closely a module is named: 0 by its name, 1 by an expression, 2 by its class."""
        if not self.names.isdisjoint(names):
            return 0
        if any(pattern.match(name) for pattern in self.patterns for name in names):
            return 1
        return 2 if self.all else None


def as_targets(entries: Sequence[str]) -> Callable[[str], bool]:
    """See Targets."""
    targets = Targets.of(entries)
    return lambda name: targets.rank((name,)) is not None


def by_groups(groups: Any, settings: Settings) -> Chooser:
    """As compressed-tensors does: of several groups, that which names a module most closely."""
    known = []
    for name, own in _mapping(groups, "config_groups").items():
        group = _mapping(own, f"config_groups.{name}")
        targets = group.get("targets", "Linear")
        if targets is None:
            raise TpspecError(f"config.json: quantization_config: config_groups.{name}.targets is null")
        known.append((Targets.of(texts(targets, "targets")), over(settings, group)))

    def choose(names: Names) -> Settings | None:
        ranked = [(rank, own) for targets, own in known if (rank := targets.rank(names)) is not None]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    return choose


def by_expressions(rules: Any, settings: Settings) -> Chooser:
    """As GPTQModel's `dynamic`: the first expression that a name begins with; `-:` keeps modules plain."""
    known = [
        (
            compiled(pattern.removeprefix("-:").removeprefix("+:")),
            None if pattern.startswith("-:") else over(settings, _mapping(values, f"dynamic.{pattern}")),
        )
        for pattern, values in _mapping(rules, "dynamic").items()
    ]

    def choose(names: Names) -> Settings | None:
        fitting = (own for pattern, own in known if any(pattern.match(name) for name in names))
        return next(fitting, settings)

    return choose


def by_modules(modules: Any, settings: Settings, *, others: bool) -> Chooser:
    """By the name of a module, or of one above it; those that are not named are as `others`, or plain."""
    key = "extra_config" if others else "quantized_layers"
    known = {
        name: over(settings, _mapping(own, f"{key}.{name}")) for name, own in _mapping(modules, key).items()
    }

    def choose(names: Names) -> Settings | None:
        named = (known[each] for name in names for each in reversed(_above(name)) if each in known)
        return next(named, settings if others else None)

    return choose


def over(settings: Settings, own: Settings) -> Settings:
    """The settings with a module's own on top."""
    return {**settings, **{key: value for key, value in own.items() if value is not None}}


def _above(name: str) -> list[str]:
    """A module and all modules that hold it, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TpspecError(f"config.json: quantization_config: {key[:80]} is not an object")
    return value
