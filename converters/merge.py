"""Putting a pre-sharded directory together again: the original files, byte for byte."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpspec.checkpoint import StoredFile
from tpspec.config import CONFIG
from tpspec.converters.copy_files import copy_files
from tpspec.converters.destination import ANOTHER, check_apart, check_room
from tpspec.converters.durable import reserve, sync_directory, write_durably, writing
from tpspec.converters.feed import STRIP_BYTES, Feed, Progress
from tpspec.converters.originals import file_digests
from tpspec.converters.pipeline import Pipeline
from tpspec.converters.readers import PreshardedReader
from tpspec.converters.sinks import Bytes, write_all
from tpspec.errors import Finding, TpspecError
from tpspec.layout import Fold
from tpspec.weight_files import SINGLE

MERGE_STATE = ".tpspec-merge"
"""Where the files are written until all are there."""
INDEX = f"{SINGLE['safetensors']}.index.json"


@dataclass(frozen=True, slots=True)
class Merged:
    """The files that were rebuilt, and why they are not the original bytes; empty where they are."""

    files: tuple[str, ...]
    bytes: int
    losses: tuple[str, ...]


def merge(
    reader: PreshardedReader, out: Path, *, progress: Progress | None = None, strip_bytes: int = STRIP_BYTES
) -> Merged:
    """Rebuilds the checkpoint that a directory was made from.

    Nothing has its own name before everything is there; config.json, without which nothing loads,
    gets it last. Raises TpspecError where the destination is not empty, or where a file's tensors
    come out otherwise than they went in.
    """
    files = reader.checkpoint.files
    copied = reader.copied()
    index = reader.checkpoint.index
    names = [file.name for file in files] + ([INDEX] if index is not None else [])
    names += sorted(copied, key=lambda name: name == CONFIG)
    _check_empty(out, reader.checkpoint.directory, names)
    check_room(out, sum(file.size for file in files))
    with _state(out, reader.checkpoint.directory, names) as state:
        _write_files(reader, state, progress, strip_bytes)
        if index is not None:
            write_durably(state / INDEX, index)
        records = copy_files(reader.checkpoint.directory, state, copied)
        if findings := [
            Finding(found.name, f"has {found.size} bytes and the hash {found.xxh3_128}, not those recorded")
            for found, record in zip(records, reader.presharded.manifest.copied, strict=True)
            if found != record
        ]:
            raise TpspecError(f"{reader.checkpoint.directory} was edited", findings)
        with writing(str(out)):
            for name in names:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (state / name).rename(out / name)
            sync_directory(out)
    return Merged(tuple(names), sum(file.size for file in files), reader.losses)


def _check_empty(out: Path, source: Path, names: Sequence[str]) -> None:
    """Raises TpspecError unless `out` is absent, empty, or what an interrupted merge left."""
    check_apart(out, source)
    if not out.is_dir():
        return
    left = {entry.name for entry in out.iterdir()}
    ours = {MERGE_STATE, *(Path(name).parts[0] for name in names)} if MERGE_STATE in left else set()
    if foreign := sorted(left - ours):
        raise TpspecError(f"{out} is not empty: it holds {foreign[0]}", remedy=ANOTHER)


@contextmanager
def _state(out: Path, source: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder inside `out` to write into, removed in the end; so is an `out` made here in vain."""
    state = out / MERGE_STATE
    existed = out.is_dir()
    with writing(str(out)):
        state.mkdir(parents=True, exist_ok=True)
        lock = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TpspecError(f"another tpspec merge is writing into {out}", remedy=ANOTHER) from None
        _check_empty(out, source, names)
        try:
            yield state
        finally:
            shutil.rmtree(state, ignore_errors=True)
            if not existed:
                with suppress(OSError):  # it is not empty, and stays
                    out.rmdir()
    finally:
        os.close(lock)


def _write_files(reader: PreshardedReader, state: Path, progress: Progress | None, strip_bytes: int) -> None:
    files = reader.checkpoint.files
    total = sum(tensor.stop - tensor.start for file in files for tensor in file.tensors)
    with closing(_FileWriter(state)) as writer, Pipeline([writer], strip_bytes) as pipeline:
        feed = Feed(reader, pipeline, strip_bytes, total, progress)
        for file in files:
            pipeline.submit(_FileWriter.begin, None, file)
            digests = {}
            for tensor in file.tensors:
                layout = reader.presharded.layout.tensors.get(tensor.name)
                fold = layout.fold() if layout else Fold(1, 1, tensor.stop - tensor.start)
                digests[tensor.name] = feed.tensor(tensor, fold, _FileWriter.write, base=tensor.start)
            pipeline.submit(_FileWriter.end, None)
            found, recorded = file_digests([file], digests)[file.name], reader.digests()[file.name]
            if found != recorded:
                problem = f"its tensors have the digest {found}, the original's had {recorded}"
                raise TpspecError(
                    f"{reader.checkpoint.directory} is damaged",
                    [Finding(file.name, problem)],
                    remedy=f"see which rank it is with: tpspec verify {reader.checkpoint.directory}",
                )
        pipeline.submit(_FileWriter.finish, None)


class _FileWriter:
    """Writes one file after another; a finished one is synced while the next is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._fd = -1
        self._syncer = ThreadPoolExecutor(1)
        self._syncing: list[Future[None]] = []

    def begin(self, file: StoredFile) -> None:
        self._name = file.name
        with writing(file.name):
            self._fd = os.open(self._folder / file.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            reserve(self._fd, file.size)
        header = len(file.header).to_bytes(8, "little") + file.header
        self.write(0, np.frombuffer(header, np.uint8))

    def write(self, start: int, strip: Bytes, base: int = 0) -> None:
        write_all(self._name, self._fd, strip.data, base + start)

    def end(self) -> None:
        self._syncing.append(self._syncer.submit(_sync_and_close, self._name, self._fd))
        self._fd = -1

    def close(self) -> None:
        self._syncer.shutdown()
        if self._fd >= 0:
            os.close(self._fd)

    def finish(self) -> None:
        """Waits until every file is durable."""
        for syncing in self._syncing:
            syncing.result()


def _sync_and_close(name: str, fd: int) -> None:
    with writing(name):
        os.fsync(fd)
        os.close(fd)
