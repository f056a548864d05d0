"""The last step of a conversion: what goes along is copied, then the manifest makes it complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tpspec import __version__
from tpspec.checkpoint import MANIFEST
from tpspec.converters.durable import sync_directory, write_durably, writing
from tpspec.converters.plan import Conversion, layout_hash, number_cuts
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
from tpspec.regular_file import open_regular

COPY_BLOCK = 1 << 20


def write_manifest(
    conversion: Conversion, records: Mapping[str, Mapping[str, Any]], copied: Sequence[FileRecord]
) -> None:
    """Writes tpspec.json from the records of every target."""
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
    manifest = Manifest(
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
    )
    write_durably(conversion.out / MANIFEST, manifest.encode())


def copy_files(source: Path, out: Path, names: Iterable[str]) -> list[FileRecord]:
    """Copies files as they are, links as what they lead to; nothing is run."""
    records, folders = [], {out}
    for name in names:
        digest, size = xxhash.xxh3_128(), 0
        with open_regular(source / name, name) as original, writing(name):
            folders.add((out / name).parent)
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            with (out / name).open("wb") as copy:
                while block := original.read(COPY_BLOCK):
                    copy.write(block)
                    digest.update(block)
                    size += len(block)
                copy.flush()
                os.fsync(copy.fileno())
        records.append(FileRecord(name, size, digest.hexdigest()))
    for folder in folders:
        sync_directory(folder)
    return records
