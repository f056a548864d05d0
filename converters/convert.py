"""Cutting a checkpoint into one file per rank."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpspec.converters.complete import complete
from tpspec.converters.destination import check_destination, check_room
from tpspec.converters.feed import STRIP_BYTES, Progress
from tpspec.converters.plan import Conversion, plan
from tpspec.converters.readers import Reader
from tpspec.converters.targets import Target
from tpspec.converters.write_files import SYNC_BYTES, begun, missing_bytes, write_files
from tpspec.errors import TpspecError
from tpspec.layout import Layout


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files that a conversion wrote, those that were there, and those still missing."""

    written: tuple[str, ...]
    present: tuple[str, ...]
    missing: tuple[str, ...]
    bytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def convert(
    reader: Reader,
    out: Path,
    layout: Layout,
    *,
    ranks: Collection[int] | None = None,
    drop: bool = False,
    progress: Progress | None = None,
    strip_bytes: int = STRIP_BYTES,
    sync_bytes: int = SYNC_BYTES,
) -> Outcome:
    """Writes the files of some ranks (all where None) into `out`, going on where a run was interrupted.

    Whoever writes the last of them completes the directory. Raises TpspecError where the destination
    is not fit, the source changes, the disk fills up, or another process writes the same rank.
    """
    conversion = plan(reader, out, layout, drop=drop)
    wanted = _of_ranks(conversion, ranks)
    check_destination(out, reader.checkpoint.directory)
    check_room(out, missing_bytes(out, wanted))
    with begun(conversion, wanted) as journals:
        todo = [journal for journal in journals if not journal.complete]
        if todo:
            write_files(conversion, todo, progress, strip_bytes, sync_bytes)
    written = tuple(journal.target.name for journal in todo)
    missing = complete(conversion, written)
    present = tuple(target.name for target in wanted if target.name not in written)
    return Outcome(written, present, missing, sum(journal.target.size for journal in todo))


def _of_ranks(conversion: Conversion, ranks: Collection[int] | None) -> list[Target]:
    """The files of some ranks; the extras go with rank 0."""
    tp = conversion.layout.tp
    chosen = set(range(tp)) if ranks is None else set(ranks)
    beyond = sorted(rank for rank in chosen if not 0 <= rank < tp)
    if beyond:
        raise TpspecError(f"there is no rank {beyond[0]}: the ranks of tp {tp} are 0 to {tp - 1}")
    return [
        target
        for target in conversion.targets
        if target.rank in chosen or (target.rank == tp and 0 in chosen)
    ]
