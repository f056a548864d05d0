"""Copying the files that go along with a checkpoint's weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

from tpspec.converters.durable import sync_directory, writing
from tpspec.manifest import FileRecord
from tpspec.regular_file import open_regular, reading

COPY_BLOCK = 1 << 20


def copy_files(source: Path, out: Path, names: Iterable[str]) -> list[FileRecord]:
    """Copies files as they are, links as what they lead to; nothing is run."""
    records, folders = [], {out}
    for name in names:
        digest, size = xxhash.xxh3_128(), 0
        with open_regular(source / name, name) as original, writing(name):
            folders.add((out / name).parent)
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            with (out / name).open("wb") as copy:
                for block in _blocks(original, source / name):
                    copy.write(block)
                    digest.update(block)
                    size += len(block)
                copy.flush()
                os.fsync(copy.fileno())
        records.append(FileRecord(name, size, digest.hexdigest()))
    for folder in folders:
        sync_directory(folder)
    return records


def _blocks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    while True:
        with reading(str(path)):
            block = file.read(COPY_BLOCK)
        if not block:
            return
        yield block
