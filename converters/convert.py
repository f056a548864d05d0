"""Cutting a checkpoint: one pass over the source, every rank's file written front to back.

The thread that calls reads strips; writers, each with ranks of its own, gather, hash and append
them. Memory is the buffers that the strips are in, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpspec.converters.complete import complete
from tpspec.converters.destination import check_destination, check_room
from tpspec.converters.feed import STRIP_BYTES, Feed, Progress
from tpspec.converters.journal import Journal, changes, check_plan, locked
from tpspec.converters.originals import file_digests
from tpspec.converters.pipeline import Pipeline
from tpspec.converters.plan import Conversion, plan
from tpspec.converters.rank_writer import RankWriter
from tpspec.converters.readers import Reader
from tpspec.converters.targets import Target
from tpspec.errors import Finding, TpspecError
from tpspec.layout import Layout

SYNC_BYTES = 256 << 20
"""How much is read between two points from which an interrupted run can go on."""
WRITERS = 2


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
    check_room(out, _missing_bytes(out, wanted))
    with _begun(conversion, wanted) as journals:
        todo = [journal for journal in journals if not journal.complete]
        if todo:
            _write(conversion, todo, progress, strip_bytes, sync_bytes)
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


def _missing_bytes(out: Path, wanted: Sequence[Target]) -> int:
    """What is not yet set aside on the disk for these files."""
    missing = 0
    for target in wanted:
        held = [0]
        for path in (out / target.name, out / f"{target.name}.partial"):
            if path.is_file():
                status = path.stat()
                held.append(max(status.st_size, 512 * status.st_blocks))
        missing += max(0, target.size - max(held))
    return missing


@contextmanager
def _begun(conversion: Conversion, wanted: Sequence[Target]) -> Iterator[list[Journal]]:
    """The wanted targets' journals, which keep others from writing them."""
    out, reader = conversion.out, conversion.reader
    with ExitStack() as stack:
        with locked(out):
            check_destination(out, reader.checkpoint.directory)
            check_plan(out, conversion.fingerprint())
            journals = [stack.enter_context(closing(Journal(out, target))) for target in wanted]
        yield journals


def _write(
    conversion: Conversion,
    journals: Sequence[Journal],
    progress: Progress | None,
    strip_bytes: int,
    sync_bytes: int,
) -> None:
    reader = conversion.reader
    stamps = reader.stamps()
    for journal in journals:
        journal.begin(stamps)
    behind = min(journals, key=lambda journal: len(journal.digests))
    digests = list(behind.digests)
    todo = conversion.visits[len(digests) :]
    sizes = [visit.nbytes * len(visit.turns(strip_bytes)) for visit in conversion.visits]
    total = sum(sizes)
    count = min(WRITERS, len(journals))
    with ExitStack() as stack:
        writers = [RankWriter(journals[first::count]) for first in range(count)]
        for writer in writers:
            stack.enter_context(closing(writer))
        pipeline = stack.enter_context(Pipeline(writers, strip_bytes))
        pipeline.submit(RankWriter.start, None)
        feed = Feed(reader, pipeline, strip_bytes, total, progress)
        feed.done = marked = sum(sizes[: len(digests)])
        for number, visit in enumerate(todo, len(digests)):
            fold, digest = visit.layout.fold(), b""
            for turn in visit.turns(strip_bytes):
                digest = feed.tensor(
                    visit.stored, fold, RankWriter.write, number=number, visit=visit, turn=turn
                )
            digests.append(digest)
            if feed.done - marked >= sync_bytes:
                marked = feed.done
                pipeline.submit(RankWriter.mark, None, tuple(digests))
        of_tensors = {v.stored.name: d for v, d in zip(conversion.visits, digests, strict=True)}
        of_files = file_digests(conversion.original.files, of_tensors)
        _check_source(conversion, stamps, of_files)
        pipeline.submit(RankWriter.finish, None, digests, of_files)


def _check_source(conversion: Conversion, stamps: dict[str, list[int]], digests: dict[str, str]) -> None:
    """Raises TpspecError where the source is not what it was, or not what its manifest says."""
    reader = conversion.reader
    directory, out = reader.checkpoint.directory, conversion.out
    left = f"what this run left in {out} (*.partial) is of no use: remove it"
    if changed := list(changes(stamps, reader.stamps())):
        message = f"{directory} changed while it was being read"
        raise TpspecError(message, changed, f"{left}, and convert again")
    known = reader.digests()
    findings = [
        Finding(new.name, f"its tensors have the digest {digests[new.name]}, not {known[new.name]}")
        for old, new in zip(reader.checkpoint.files, conversion.original.files, strict=True)
        if old is new and known.get(new.name, digests[new.name]) != digests[new.name]
    ]
    if findings:
        raise TpspecError(f"{directory} is damaged", findings, f"{left}, and convert from a sound source")
