"""The last step of a conversion: what goes along is copied, then the manifest makes it complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tpspec import __version__
from tpspec.converters.copy_files import copy_files
from tpspec.converters.durable import sync_directory, write_durably
from tpspec.converters.journal import clear_state, is_complete, locked, read_record, state_error
from tpspec.converters.plan import Conversion, layout_hash, number_cuts
from tpspec.converters.write_files import Work
from tpspec.errors import Finding, TpspecError
from tpspec.file_names import MANIFEST
from tpspec.layout import Cut
from tpspec.manifest import (
    FORMAT,
    NOT_CUT,
    CutRecord,
    FileRecord,
    Manifest,
    SourceRecord,
    SpecRecord,
    pack_header,
)
from tpspec.presharded import hash_file
from tpspec.regular_file import reading

HASHERS = 4
"""Files that are read at once; one thread hashes some GB/s, so the disk is the limit."""


def complete(conversion: Conversion, written: Collection[str] = ()) -> tuple[str, ...]:
    """Completes the directory if every file is there; else returns the names of those that are not.

    Files that are not among those just `written` are read again. Raises TpspecError where one is not
    what its run wrote, or was cut from other content.
    """
    out = conversion.out
    with locked(out):
        if (out / MANIFEST).exists():
            clear_state(out)
            return ()
        records = {target.name: read_record(out, target) for target in conversion.targets}
        missing = tuple(t.name for t in conversion.targets if not is_complete(out, t, records[t.name]))
        if missing:
            return missing
        sync_directory(out)
        check_agreement(conversion, records)
        check_content(out, {name: records[name] for name in records if name not in written})
        copied = copy_files(conversion.reader.checkpoint.directory, out, conversion.copied)
        write_durably(out / MANIFEST, _manifest(conversion, records, copied).encode())
        clear_state(out)
    return ()


def check_content(out: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises TpspecError where files have changed since they were written."""

    def found(name: str) -> str:
        with reading(str(out / name)):
            return hash_file(out / name)

    with ThreadPoolExecutor(HASHERS) as pool:
        hashes = dict(zip(records, pool.map(found, records), strict=True))
    findings = [
        Finding(name, f"has the hash {hashes[name]}, it was written with {record['xxh3_128']}")
        for name, record in records.items()
        if hashes[name] != record["xxh3_128"]
    ]
    if findings:
        names = ", ".join(finding.subject for finding in findings)
        remedy = f"remove {names} from {out}, and convert these ranks again"
        raise TpspecError(f"files in {out} have changed since they were written", findings, remedy)


def check_agreement(work: Work, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises TpspecError where ranks were cut from sources of different content."""
    out = work.out
    files = {file.name for file in work.original.files}
    for name, record in records.items():
        if record["digests"].keys() != files:
            raise state_error(out, f"{name}.json")
    first, *others = records
    findings = [
        Finding(other, f"was cut from another {file} than {first}")
        for other in others
        for file, digest in records[first]["digests"].items()
        if records[other]["digests"].get(file) != digest
    ]
    if findings:
        remedy = f"remove {out}, and convert again from one source"
        raise TpspecError(f"the ranks in {out} do not belong together", findings, remedy)


def _manifest(
    conversion: Conversion, records: Mapping[str, Mapping[str, Any]], copied: Sequence[FileRecord]
) -> Manifest:
    """What the records of every target come to."""
    layout, original = conversion.layout, conversion.original
    numbers = number_cuts(conversion.visits, layout.tp)
    cuts: dict[int, Cut] = {}
    of_tensor: dict[str, tuple[int, int]] = {}
    for place, (visit, number) in enumerate(zip(conversion.visits, numbers, strict=True)):
        of_tensor[visit.stored.name] = number, place
        cuts.setdefault(number, visit.layout.cut)
    cuts.pop(NOT_CUT, None)
    files = [
        FileRecord(target.name, target.size, records[target.name]["xxh3_128"])
        for target in conversion.targets
    ]
    digests = records[files[0].name]["digests"]
    return Manifest(
        format=FORMAT,
        tpspec=__version__,
        spec=SpecRecord(layout.spec, layout_hash(conversion.visits, layout.tp)),
        tp=layout.tp,
        padding=layout.padding(),
        losses=conversion.losses,
        index=original.index.decode() if original.index is not None else None,
        sources=tuple(
            SourceRecord(
                file.name,
                file.size,
                digests[file.name],
                pack_header(file.header),
                tuple(of_tensor[tensor.name][0] for tensor in file.tensors),
                tuple(of_tensor[tensor.name][1] for tensor in file.tensors),
            )
            for file in original.files
        ),
        cuts=tuple(CutRecord(cut.dim, cut.size, cut.shares) for _, cut in sorted(cuts.items())),
        ranks=tuple(files[: layout.tp]),
        extras=files[layout.tp] if len(files) > layout.tp else None,
        copied=tuple(copied),
        pad=layout.pad,
    )
