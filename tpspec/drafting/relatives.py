"""The built-in spec that a draft resembles most."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpspec.language.registry import BUILT_IN, spec_from_file, spec_named
from tpspec.language.spec import Spec


@dataclass(frozen=True)
class Relative:
    """A spec, how many of the draft's rules it has, and how many it lacks or has besides."""

    name: str
    alike: int
    different: int


def nearest(path: Path) -> Relative | None:
    """The spec of another architecture from which a draft differs least, the plainest of several.

    None where it has less than half of its rules, or as many differ as agree.
    """
    draft = spec_from_file(path)
    mine = _cuts(draft)
    relatives = []
    for file in BUILT_IN.glob("*.yaml"):
        other = spec_named(file.stem)
        if other.model_types and not set(other.model_types) & set(draft.model_types):
            theirs = _cuts(other)
            relative = Relative(other.name, len(mine & theirs), len(mine ^ theirs))
            relatives.append((relative.different, len(other.extends), other.name, relative))
    best = min(relatives)[-1]
    return best if 2 * best.alike >= len(mine) and best.alike > best.different else None


def _cuts(spec: Spec) -> set[tuple[str, str]]:
    return {(placed.template, placed.rule.described()) for placed in spec.rules}
