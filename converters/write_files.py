"""Writing the files of a plan: one pass over the source, every file written front to back.

The thread that calls reads strips; writers, each with files of its own, gather, hash and append
them. Memory is the buffers that the strips are in, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from tpspec.checkpoint import Checkpoint
from tpspec.converters.destination import check_destination
from tpspec.converters.feed import Feed, Progress
from tpspec.converters.journal import Journal, changes, check_plan, locked
from tpspec.converters.originals import file_digests
from tpspec.converters.pipeline import dealt, opened
from tpspec.converters.rank_writer import RankWriter
from tpspec.converters.readers import Reader
from tpspec.converters.targets import Target, Visit
from tpspec.errors import Finding, TpspecError

SYNC_BYTES = 256 << 20
"""How much is read between two points from which an interrupted run can go on."""


class Work(Protocol):
    """What is read in which order, and where it goes. `original` has the files whose digests are kept."""

    @property
    def reader(self) -> Reader: ...

    @property
    def out(self) -> Path: ...

    @property
    def visits(self) -> Sequence[Visit]: ...

    @property
    def original(self) -> Checkpoint: ...

    @property
    def manifest(self) -> str:
        """The file that will make the directory complete."""

    def fingerprint(self) -> dict[str, Any]:
        """What two runs must have in common to work on one directory."""


def missing_bytes(out: Path, wanted: Sequence[Target]) -> int:
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
def begun(work: Work, wanted: Sequence[Target]) -> Iterator[list[Journal]]:
    """The wanted targets' journals, which keep others from writing them."""
    out, reader = work.out, work.reader
    with ExitStack() as stack:
        with locked(out):
            check_destination(out, reader.checkpoint.directory, work.manifest)
            check_plan(out, work.fingerprint())
            journals = [stack.enter_context(closing(Journal(out, target))) for target in wanted]
        yield journals


def write_files(
    work: Work,
    journals: Sequence[Journal],
    progress: Progress | None,
    strip_bytes: int,
    sync_bytes: int,
) -> None:
    reader = work.reader
    stamps = reader.stamps()
    for journal in journals:
        journal.begin(stamps)
    behind = min(journals, key=lambda journal: len(journal.digests))
    digests = list(behind.digests)
    todo = work.visits[len(digests) :]
    sizes = [visit.read_bytes(strip_bytes) for visit in work.visits]
    total = sum(sizes)
    with opened([RankWriter(mine) for mine in dealt(journals)], strip_bytes) as pipeline:
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
        of_tensors = {v.stored.name: d for v, d in zip(work.visits, digests, strict=True)}
        of_files = file_digests(work.original.files, of_tensors)
        _check_source(work, stamps, of_files)
        pipeline.submit(RankWriter.finish, None, digests, of_files)


def _check_source(work: Work, stamps: dict[str, list[int]], digests: dict[str, str]) -> None:
    """Raises TpspecError where the source is not what it was, or not what its manifest says."""
    reader = work.reader
    directory, out = reader.checkpoint.directory, work.out
    left = f"what this run left in {out} (*.partial) is of no use: remove it"
    if changed := list(changes(stamps, reader.stamps())):
        message = f"{directory} changed while it was being read"
        raise TpspecError(message, changed, f"{left}, and convert again")
    known = reader.digests()
    findings = [
        Finding(new.name, f"its tensors have the digest {digests[new.name]}, not {known[new.name]}")
        for old, new in zip(reader.checkpoint.files, work.original.files, strict=True)
        if old is new and known.get(new.name, digests[new.name]) != digests[new.name]
    ]
    if findings:
        raise TpspecError(f"{directory} is damaged", findings, f"{left}, and convert from a sound source")
