"""A pre-sharded directory: one safetensors file per rank, checked before a byte is used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tpspec.config import CONFIG, MAX_BYTES, read_config, with_quantization
from tpspec.dtypes import nbytes
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.file_names import MANIFEST
from tpspec.layout import Cut, Layout, TensorLayout
from tpspec.manifest import EDITED, NOT_CUT, FileRecord, Manifest, SourceRecord, read_manifest
from tpspec.regular_file import open_regular, read_regular
from tpspec.safetensors_header import StoredFile, StoredTensor, parse_header, read_header

HASH_BLOCK = 4 << 20
LOADED = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})
"""Suffixes of what loading reads beside the ranks: configs and tokenizers, not a README or pictures."""


@dataclass(frozen=True)
class Presharded:
    """A directory that `tpspec convert` has completed.

    `files` are the original checkpoint's files, as their headers described them.
    """

    directory: Path
    manifest: Manifest
    config: dict[str, Any]
    files: tuple[StoredFile, ...]
    layout: Layout

    @property
    def tp(self) -> int:
        return self.manifest.tp

    @cached_property
    def stored(self) -> dict[str, StoredTensor]:
        """Every tensor of the original checkpoint by name."""
        return {tensor.name: tensor for file in self.files for tensor in file.tensors}

    @classmethod
    def open(cls, directory: Path) -> Presharded:
        """Reads the manifest and the config, but no rank file. Raises TpspecError with all faults."""
        manifest = read_manifest(directory)
        files: list[StoredFile] = []
        findings: list[Finding] = []
        for source in manifest.sources:
            try:
                files.append(_source_file(directory, source))
            except TpspecError as error:
                findings += error.findings
        if not findings:
            findings = list(_misfits(manifest, files))
        if findings:
            raise TpspecError(f"{MANIFEST} is damaged or was edited", first_findings(findings), remedy=EDITED)
        names = [entry.name for entry in directory.iterdir()]
        config = with_quantization(
            read_config(directory / CONFIG),
            names,
            lambda name: read_regular(directory / name, MAX_BYTES, name),
        )
        return cls(directory, manifest, config, tuple(files), _layout(manifest, files))

    def check_copied(self, instead: str = "") -> None:
        """Looks at the configs and the tokenizer's files, which decide what the ranks compute and read.

        Raises TpspecError with all that are not as they were copied; `instead` is what else can be done.
        """
        records = [record for record in self.manifest.copied if Path(record.name).suffix in LOADED]
        found = [finding for record in records for finding in check_file(self.directory, record)]
        if findings := [replace(finding, remedy="") for finding in found]:
            remedy = f"convert again, from a checkpoint that says so{instead}"
            raise TpspecError(f"{self.directory} was edited", first_findings(findings), remedy)

    def rank_header(self, rank: int) -> StoredFile:
        """A rank file's header, every tensor in it of the shape that its cut gives the rank."""
        expected = {t.name: (t.dtype, t.local_shape(rank)) for t in self.layout.of_rank(rank)}
        return self._header(self.manifest.ranks[rank], expected, f"rank {rank} cannot be loaded")

    def extras_header(self) -> StoredFile | None:
        """The extras file's header, where there is such a file."""
        record = self.manifest.extras
        if record is None:
            return None
        extras = (self.stored[name] for name in self.layout.extras)
        expected = {tensor.name: (tensor.dtype, tensor.shape) for tensor in extras}
        return self._header(record, expected, f"{record.name} cannot be read")

    def check_rank(self, rank: int, tp: int, *, hashes: bool = True) -> StoredFile:
        """A rank's file, checked before it is loaded: tp, presence, size, hash, names, dtypes and shapes.

        Raises TpspecError that names the rank and the file.
        """
        if tp != self.tp:
            raise TpspecError(
                f"{self.directory} was cut for tp {self.tp}, not for tp {tp}",
                remedy=f"use {self.tp} ranks, or cut it again: tpspec convert {self.directory} OUT --tp {tp}",
            )
        header = self.rank_header(rank)
        record = self.manifest.ranks[rank]
        if hashes and (found := hash_file(self.directory / record.name)) != record.xxh3_128:
            finding = Finding(record.name, f"has the hash {found}, the manifest {record.xxh3_128}")
            raise TpspecError(f"rank {rank} cannot be loaded", [finding], remedy=EDITED)
        return header

    def _header(
        self, record: FileRecord, expected: Mapping[str, tuple[str, tuple[int, ...]]], message: str
    ) -> StoredFile:
        findings = list(check_size(self.directory, record))
        if not findings:
            header = read_header(self.directory / record.name)
            findings = list(_header_findings(header, expected))
            if not findings:
                return header
        raise TpspecError(message, first_findings(findings), remedy=EDITED)


def check_size(directory: Path, record: FileRecord) -> Iterator[Finding]:
    """Whether a file of a directory is there, in the directory, and as long as its record says."""
    path = directory / record.name
    real, home = os.path.realpath(path), os.path.realpath(directory)
    if os.path.commonpath([real, home]) != home:
        yield Finding(record.name, f"is a link out of the directory, to {real}")
        return
    try:
        with open_regular(path, record.name) as file:
            size = os.fstat(file.fileno()).st_size
    except TpspecError as error:
        yield from error.findings
        return
    if size != record.size:
        yield Finding(record.name, f"has {size} bytes, the manifest says {record.size}")


def check_file(directory: Path, record: FileRecord) -> Iterator[Finding]:
    """Whether a file of a directory has the size and the hash that its record says."""
    wrong = list(check_size(directory, record))
    yield from wrong
    if not wrong:
        yield from check_hash(record, hash_file(directory / record.name))


def check_hash(record: FileRecord, found: str) -> Iterator[Finding]:
    """Whether the hash that was found is the record's."""
    if found != record.xxh3_128:
        yield Finding(record.name, f"has the hash {found}, the manifest says {record.xxh3_128}")


def hash_file(path: Path) -> str:
    """XXH3-128 of a file's bytes, as `xxhsum -H2` gives it."""
    import xxhash

    digest = xxhash.xxh3_128()
    buffer = bytearray(HASH_BLOCK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def _source_file(directory: Path, source: SourceRecord) -> StoredFile:
    """A source file as its header in the manifest describes it."""
    try:
        header = source.raw_header()
    except ValueError as error:
        raise TpspecError(MANIFEST, [Finding(source.name, f"has a damaged header: {error}")]) from error
    file = parse_header(directory / source.name, header, source.size)
    if len(file.tensors) != len(source.cuts):
        problem = f"has {len(file.tensors)} tensors, but {len(source.cuts)} cuts"
        raise TpspecError(MANIFEST, [Finding(source.name, problem)])
    return file


def _misfits(manifest: Manifest, files: Sequence[StoredFile]) -> Iterator[Finding]:
    """Tensors whose cuts do not fit them, and those that stand in two files."""
    cuts = [Cut(*row) for row in manifest.cuts]
    seen: set[str] = set()
    for source, file in zip(manifest.sources, files, strict=True):
        for tensor, number in zip(file.tensors, source.cuts, strict=True):
            if tensor.name in seen:
                yield Finding(tensor.name, "is in two source files", place=file.name)
            elif number != NOT_CUT and (problem := _misfit(tensor, cuts[number])):
                yield Finding(tensor.name, problem, place=file.name)
            seen.add(tensor.name)


def _misfit(tensor: StoredTensor, cut: Cut) -> str:
    """Why a cut does not fit a tensor; empty where it does."""
    dim = cut.dim
    if dim is None:
        return ""
    if dim >= len(tensor.shape) or tensor.shape[dim] != cut.size:
        return f"has the shape {list(tensor.shape)}, but a cut of dimension {dim} with size {cut.size}"
    try:
        nbytes(tensor.dtype, tensor.shape[dim + 1 :])
    except ValueError as error:
        return f"cannot be cut along dimension {dim}: {error}"
    return ""


def _layout(manifest: Manifest, files: Sequence[StoredFile]) -> Layout:
    """The Layout that the directory was made by."""
    cuts = [Cut(*row) for row in manifest.cuts]
    placed: list[tuple[int, int, StoredTensor]] = []
    for source, file in zip(manifest.sources, files, strict=True):
        placed += zip(source.places, source.cuts, file.tensors, strict=True)
    placed.sort(key=lambda item: item[0])
    held = {
        tensor.name: TensorLayout(tensor.name, tensor.dtype, tensor.shape, cuts[number])
        for _, number, tensor in placed
        if number != NOT_CUT
    }
    extras = tuple(tensor.name for _, number, tensor in placed if number == NOT_CUT)
    return Layout(manifest.tp, manifest.spec.name, held, extras, manifest.pad)


def _header_findings(
    file: StoredFile, expected: Mapping[str, tuple[str, tuple[int, ...]]]
) -> Iterator[Finding]:
    found = {tensor.name: (tensor.dtype, tensor.shape) for tensor in file.tensors}
    for name in sorted(expected.keys() - found.keys()):
        yield Finding(name, "is missing", place=file.name)
    for name in sorted(found.keys() - expected.keys()):
        yield Finding(name, "does not belong to this rank", place=file.name)
    for name in sorted(expected.keys() & found.keys()):
        if found[name] != expected[name]:
            (dtype, shape), (wanted_dtype, wanted) = found[name], expected[name]
            problem = f"is {dtype} {list(shape)}, its cut gives {wanted_dtype} {list(wanted)}"
            yield Finding(name, problem, place=file.name)
    if not set(found) ^ set(expected) and list(found) != list(expected):
        yield Finding(file.name, "holds its tensors in another order than the manifest says")
