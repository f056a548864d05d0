"""Writing a padded model as an ordinary checkpoint: the source's files, with zeros and copies in them.

It is written as a conversion is: streaming, and going on where it was interrupted. config.json, without
which nothing loads, comes after all weights, and the record of the padding last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tpspec import __version__
from tpspec.checkpoint import Checkpoint, StoredTensor
from tpspec.config import CONFIG
from tpspec.converters.complete import check_agreement, check_content
from tpspec.converters.copy_files import copy_files
from tpspec.converters.destination import check_destination, check_room
from tpspec.converters.durable import sync_directory, write_durably
from tpspec.converters.feed import STRIP_BYTES, Progress
from tpspec.converters.journal import clear_state, is_complete, locked, read_record
from tpspec.converters.originals import without
from tpspec.converters.plan import layout_hash
from tpspec.converters.readers import PreshardedReader, Reader, ReaderOver
from tpspec.converters.sinks import Bytes
from tpspec.converters.targets import Target, Visit, named_targets
from tpspec.converters.write_files import SYNC_BYTES, begun, missing_bytes, write_files
from tpspec.layout import Cut, TensorLayout
from tpspec.padded_model import PaddedModel
from tpspec.weight_files import SINGLE

RECORD = "tpspec_padding.json"
"""Says what was padded; written last."""
INDEX = f"{SINGLE['safetensors']}.index.json"
INTEGERS = {"I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class PaddedWork:
    """A padded checkpoint to be written: the files of the source, each with its padded tensors."""

    source: Reader
    out: Path
    model: PaddedModel
    padding: Mapping[str, Any]
    manifest: str = RECORD

    @cached_property
    def reader(self) -> NumbersReader:
        return NumbersReader(self.source, self.model)

    @cached_property
    def original(self) -> Checkpoint:
        """The source without what is not read of it."""
        return without(self.reader.checkpoint, (*self.model.left_out, *self.reader.numbers))

    @cached_property
    def visits(self) -> Sequence[Visit]:
        """Every tensor in the order of the files; a file is the one rank that holds its tensors."""
        numbers = {file.name: number for number, file in enumerate(self.reader.checkpoint.files)}
        ordered = sorted(
            self.model.tensors, key=lambda tensor: (numbers[tensor.stored.file], tensor.stored.start)
        )
        found = []
        for tensor in ordered:
            file, (share,) = numbers[tensor.stored.file], tensor.cut.shares
            shares = (*(None,) * file, share, *(None,) * (len(numbers) - file - 1))
            cut = Cut(tensor.cut.dim, tensor.cut.size, shares)
            stored = tensor.stored
            found.append(Visit(stored, TensorLayout(tensor.name, stored.dtype, stored.shape, cut)))
        return found

    @cached_property
    def targets(self) -> Sequence[Target]:
        return named_targets([file.name for file in self.reader.checkpoint.files], self.visits)

    def fingerprint(self) -> dict[str, Any]:
        """What two runs must have in common to work on one directory."""
        files = self.reader.checkpoint.files
        return {
            "padded for tp": self.model.tp,
            "config": xxhash.xxh3_128(self.model.config).hexdigest(),
            **{f"source {f.name}": [f.size, xxhash.xxh3_128(f.header).hexdigest()] for f in files},
            "tensors": layout_hash(self.visits, len(files)),
        }


class NumbersReader(ReaderOver):
    """Reads a source's tensors, and the numbers that a padded model has in their place."""

    def __init__(self, reader: Reader, model: PaddedModel) -> None:
        super().__init__(reader)
        self.numbers = {tensor.name: tensor.numbers for tensor in model.tensors if tensor.numbers}

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        if tensor.name not in self.numbers:
            super().read(tensor, start, out)
            return
        made = self.numbers[tensor.name]
        numbers = np.repeat(np.asarray(made.values), made.times)[: made.length]
        out[:] = numbers.astype(INTEGERS[tensor.dtype]).view(np.uint8)[start : start + out.size]


@dataclass(frozen=True, slots=True)
class Padded:
    """The weight files of a padded checkpoint, and their bytes."""

    files: tuple[str, ...]
    bytes: int


def pad(
    reader: Reader,
    out: Path,
    model: PaddedModel,
    padding: Mapping[str, Any],
    *,
    progress: Progress | None = None,
    strip_bytes: int = STRIP_BYTES,
    sync_bytes: int = SYNC_BYTES,
) -> Padded:
    """Writes a padded model into `out`, going on where a run was interrupted; `padding` is what is recorded.

    Raises TpspecError where the destination is not fit, the source changes or the disk fills up.
    """
    work = PaddedWork(reader, out, model, padding)
    check_destination(out, reader.checkpoint.directory, RECORD)
    check_room(out, missing_bytes(out, work.targets))
    if work.reader.numbers and isinstance(reader, PreshardedReader):
        for rank in range(reader.presharded.tp):  # what is not read makes no digest
            reader.presharded.check_rank(rank, reader.presharded.tp)
    with begun(work, work.targets) as journals:
        todo = [journal for journal in journals if not journal.complete]
        if todo:
            write_files(work, todo, progress, strip_bytes, sync_bytes)
    _complete(work, {journal.target.name for journal in todo})
    return Padded(tuple(target.name for target in work.targets), sum(target.size for target in work.targets))


def _complete(work: PaddedWork, written: set[str]) -> None:
    """Writes what goes along; config.json and the record come last. Files of earlier runs are read again."""
    out, reader = work.out, work.reader
    with locked(out):
        records = {target.name: read_record(out, target) for target in work.targets}
        assert all(is_complete(out, target, records[target.name]) for target in work.targets)
        sync_directory(out)
        check_agreement(work, records)
        check_content(out, {name: record for name, record in records.items() if name not in written})
        names = [name for name in reader.copied() if name not in (CONFIG, RECORD)]
        copy_files(reader.checkpoint.directory, out, names)
        if reader.checkpoint.index is not None:
            write_durably(out / INDEX, _index(work))
        write_durably(out / CONFIG, work.model.config)
        files = {name: record["xxh3_128"] for name, record in records.items()}
        document = {"tpspec": __version__, "tp": work.model.tp, **work.padding, "xxh3_128": files}
        write_durably(out / RECORD, json.dumps(document, indent=2).encode() + b"\n")
        clear_state(out)


def _index(work: PaddedWork) -> bytes:
    """The index of the padded files."""
    weight_map = {visit.layout.name: visit.stored.file for visit in work.visits}
    total = sum(target.size - len(target.header) for target in work.targets)
    return (
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2).encode() + b"\n"
    )
