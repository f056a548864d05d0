"""A conversion as planned, before it touches a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from tpspec.checkpoint import Checkpoint
from tpspec.converters.originals import without
from tpspec.converters.readers import Reader
from tpspec.converters.targets import Target, Visit, targets, visits
from tpspec.file_names import MANIFEST
from tpspec.layout import Cut, Layout
from tpspec.manifest import NOT_CUT


@dataclass(frozen=True)
class Conversion:
    """What is read in which order, and what is written.

    `original` is what merging will rebuild, `losses` says why that is not the source's bytes, and
    `copied` names the files that go along.
    """

    reader: Reader
    out: Path
    layout: Layout
    visits: Sequence[Visit]
    targets: Sequence[Target]
    original: Checkpoint
    losses: tuple[str, ...]
    copied: Sequence[str]
    manifest: str = MANIFEST

    def fingerprint(self) -> dict[str, Any]:
        """What two runs must have in common to work on one directory."""
        files = self.reader.checkpoint.files
        return {
            "tp": self.layout.tp,
            "spec": self.layout.spec,
            "losses": list(self.losses),
            **{f"source {f.name}": [f.size, xxhash.xxh3_128(f.header).hexdigest()] for f in files},
            "cuts": layout_hash(self.visits, self.layout.tp),
        }


def plan(reader: Reader, out: Path, layout: Layout, *, drop: bool = False) -> Conversion:
    """Decides what is read and written. With `drop`, what no rank holds is left out.

    Raises TpspecError for files that cannot go along.
    """
    found = visits(reader.checkpoint.tensors, layout, drop=drop)
    dropped = layout.extras if drop else ()
    losses = (*reader.losses, f"{len(dropped)} tensors were dropped") if dropped else reader.losses
    original = without(reader.checkpoint, dropped)
    files = targets(found, layout.tp)
    return Conversion(reader, out, layout, found, files, original, losses, reader.copied())


def number_cuts(plan: Sequence[Visit], tp: int) -> list[int]:
    """For each visit the number of its cut among the distinct ones, in the order of their first use."""
    numbers: dict[Cut, int] = {}
    by_identity: dict[int, int] = {}
    found = []
    for visit in plan:
        cut = visit.layout.cut
        if cut.tp > tp:
            found.append(NOT_CUT)
            continue
        if id(cut) not in by_identity:
            by_identity[id(cut)] = numbers.setdefault(cut, len(numbers))
        found.append(by_identity[id(cut)])
    return found


def layout_hash(plan: Sequence[Visit], tp: int) -> str:
    """XXH3-128 of which tensor has which cut, in file order: whether two layouts are the same."""
    digest = xxhash.xxh3_128()
    numbers = number_cuts(plan, tp)
    for visit, number in zip(plan, numbers, strict=True):
        digest.update(f"{visit.layout.name} {visit.layout.dtype} {visit.layout.shape} {number}\n".encode())
    for cut in dict.fromkeys(visit.layout.cut for visit in plan):
        digest.update(f"{cut.dim} {cut.size} {cut.shares}\n".encode())
    return digest.hexdigest()
