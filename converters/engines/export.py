"""Writing what an engine's sharded_state loader reads, from a checkpoint or a pre-sharded directory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from tpspec import __version__
from tpspec.converters.complete import check_content
from tpspec.converters.copy_files import copy_files
from tpspec.converters.destination import check_destination, check_room
from tpspec.converters.durable import sync_directory, write_durably
from tpspec.converters.engines.plan import Export
from tpspec.converters.feed import STRIP_BYTES, Progress
from tpspec.converters.journal import clear_state, read_record
from tpspec.converters.readers import PreshardedReader, Reader
from tpspec.converters.write_files import SYNC_BYTES, begun, missing_bytes, write_files
from tpspec.engines.layout import EngineLayout
from tpspec.engines.manifest import ExportManifest
from tpspec.manifest import FileRecord


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that an export wrote, those that were there, and how to serve it."""

    written: tuple[str, ...]
    present: tuple[str, ...]
    bytes: int
    serve: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def export(
    source: Reader,
    out: Path,
    layout: EngineLayout,
    *,
    max_file_size: int | None = None,
    progress: Progress | None = None,
    strip_bytes: int = STRIP_BYTES,
    sync_bytes: int = SYNC_BYTES,
) -> Exported:
    """Writes every rank's files into `out`, going on where a run was interrupted.

    Raises TpspecError where the destination is not fit, the source is damaged or changes, or the disk
    fills up.
    """
    work = Export(source, out, layout, max_file_size)
    beside = work.reader.copied()
    check_destination(out, source.checkpoint.directory, work.manifest)
    check_room(out, missing_bytes(out, work.targets))
    if isinstance(source, PreshardedReader):
        for rank in range(source.presharded.tp):
            source.presharded.check_rank(rank, source.presharded.tp)
    with begun(work, work.targets) as journals:
        todo = [journal for journal in journals if not journal.complete]
        if todo:
            write_files(work, todo, progress, strip_bytes, sync_bytes)
        written = tuple(journal.target.name for journal in todo)
        _complete(work, written, beside)
    present = tuple(target.name for target in work.targets if target.name not in written)
    place = f"./{out}" if str(out).startswith("-") else str(out)  # as an option a command would take it
    serve = layout.engine.serve.format(out=quote(place), tp=layout.tp)
    return Exported(written, present, sum(journal.target.size for journal in todo), serve)


def _complete(work: Export, written: Collection[str], beside: Sequence[str]) -> None:
    """Copies what goes along `beside`, then writes what the export is.

    Files that are not among those just `written` are read again.
    """
    out = work.out
    records = {target.name: read_record(out, target) for target in work.targets}
    check_content(out, {name: record for name, record in records.items() if name not in written})
    sync_directory(out)
    copied = copy_files(work.source.checkpoint.directory, out, beside)
    manifest = ExportManifest(
        __version__,
        work.layout.engine.engine,
        work.layout.release,
        work.layout.tp,
        tuple(FileRecord(t.name, t.size, records[t.name]["xxh3_128"]) for t in work.targets),
        tuple(copied),
    )
    write_durably(out / work.manifest, manifest.encode())
    clear_state(out)
