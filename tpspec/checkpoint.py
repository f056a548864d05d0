"""A Hugging Face checkpoint, opened by its headers alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from tpspec.carried_files import carried, list_files
from tpspec.config import CONFIG, parse_config, with_quantization
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.file_names import MANIFEST, carry_problem
from tpspec.regular_file import open_regular, read_regular
from tpspec.safetensors_header import StoredFile, StoredTensor, read_header
from tpspec.weight_files import Format, WeightFiles, disagreements, find_weights

__all__ = ["Checkpoint", "StoredFile", "StoredTensor", "is_presharded", "open_checkpoint"]

MAX_JSON = 100 << 20
"""Bytes of the largest config or index that is read; DeepSeek-V3's index has 9 MB."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's config and the headers of its files, in the order of their names.

    `index` is the raw text of the index file, where there is one. With `format` "bin" the weights
    are in `bin_files`, and `files` is empty. `local` is false where only headers were fetched
    and `directory` does not exist.
    """

    directory: Path
    config: dict[str, Any]
    files: tuple[StoredFile, ...]
    index: bytes | None = None
    format: Format = "safetensors"
    bin_files: tuple[str, ...] = ()
    local: bool = True

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor by name, file after file, in the order of their bytes."""
        return {tensor.name: tensor for file in self.files for tensor in file.tensors}

    def aux_files(self) -> list[str]:
        """The files to carry along (config, tokenizer, code, licence), as paths with slashes.

        Raises TpspecError for one that cannot be carried: a pipe, a link that leads nowhere, a name
        that is not portable or one of our own.
        """
        names = carried(list_files(self.directory))
        findings: list[Finding] = []
        for name in names:
            if problem := carry_problem(name):
                findings.append(Finding(ascii(name), problem, remedy="rename the file, or remove it"))
                continue
            with _collecting(findings):
                open_regular(self.directory / name, name).close()
        if findings:
            message = f"{self.directory} holds files that cannot be copied"
            raise TpspecError(message, first_findings(findings))
        return names


Headers = Generator[Callable[[], StoredFile], None, None]


class Folder(Protocol):
    """Where a checkpoint's files lie: a directory, or a repository of the Hugging Face Hub."""

    @property
    def path(self) -> Path: ...

    @property
    def local(self) -> bool: ...

    def names(self) -> frozenset[str]:
        """Names of the files, without those in subfolders."""

    def read(self, name: str) -> bytes:
        """A small file's content."""

    def check(self, name: str) -> None:
        """Raises TpspecError where a file is absent or no regular file."""

    def headers(self, names: tuple[str, ...]) -> Headers:
        """For each file a call that returns its header or raises TpspecError."""


@dataclass(frozen=True)
class Directory:
    """A folder on this machine."""

    path: Path
    local: bool = True

    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.path.iterdir())

    def read(self, name: str) -> bytes:
        return read_regular(self.path / name, MAX_JSON, name)

    def check(self, name: str) -> None:
        open_regular(self.path / name, name).close()

    def headers(self, names: tuple[str, ...]) -> Headers:
        return (partial(read_header, self.path / name) for name in names)


def is_presharded(path: Path) -> bool:
    """Whether a directory is one that `tpspec convert` has completed."""
    return (path / MANIFEST).is_file()


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint directory's config, index and headers. Raises TpspecError with all faults."""
    if not path.is_dir():
        raise TpspecError(f"{path} is not a directory", remedy="give the directory that holds a checkpoint")
    return load(Directory(path))


def load(folder: Folder) -> Checkpoint:
    """Reads a checkpoint from wherever it lies. Raises TpspecError with all that is wrong."""
    findings: list[Finding] = []
    config: dict[str, Any] = {}
    files: list[StoredFile] = []
    weights: WeightFiles | None = None
    with _collecting(findings):
        config = parse_config(folder.read(CONFIG), CONFIG)
        config = with_quantization(config, folder.names(), folder.read)
    with _collecting(findings):
        weights = find_weights(folder.names(), folder.read)
    if weights and weights.format == "safetensors":
        with closing(folder.headers(weights.names)) as headers:
            for header in headers:
                with _collecting(findings):
                    files.append(header())
        findings += disagreements(weights, files)
    elif weights:
        for name in weights.names:
            with _collecting(findings):
                folder.check(name)
    if findings or not weights:
        raise TpspecError(f"{folder.path} is not a sound checkpoint", findings)
    bins = weights.names if weights.format == "bin" else ()
    return Checkpoint(folder.path, config, tuple(files), weights.index, weights.format, bins, folder.local)


@contextmanager
def _collecting(findings: list[Finding]) -> Iterator[None]:
    """Keeps an error's findings and goes on; an error without findings ends everything."""
    try:
        yield
    except TpspecError as error:
        if not error.findings:
            raise
        findings += error.findings
