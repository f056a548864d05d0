"""A Hugging Face checkpoint, opened by its headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tpspec import json_strict
from tpspec.config import read_config
from tpspec.regular_file import read_regular
from tpspec.safetensors_header import StoredFile, StoredTensor, read_header

__all__ = ["Checkpoint", "StoredFile", "StoredTensor", "is_presharded", "open_checkpoint"]

MANIFEST = "tpspec.json"
INDEX = "model.safetensors.index.json"


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
    format: Literal["safetensors", "bin"] = "safetensors"
    bin_files: tuple[str, ...] = ()
    local: bool = True

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor by name, file after file, in the order of their bytes."""
        return {tensor.name: tensor for file in self.files for tensor in file.tensors}


def is_presharded(path: Path) -> bool:
    """Whether a directory is one that `tpspec convert` has completed."""
    return (path / MANIFEST).is_file()


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint directory's config, index and headers."""
    config = read_config(path / "config.json")
    index = None
    names = ["model.safetensors"]
    if (path / INDEX).exists():
        index = read_regular(path / INDEX, 100 << 20, INDEX)
        names = sorted(set(json_strict.loads(index, INDEX)["weight_map"].values()))
    return Checkpoint(path, config, tuple(read_header(path / name) for name in names), index)
