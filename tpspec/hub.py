"""Finds what a command is given: a checkpoint directory, a config.json or a Hugging Face model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpspec.checkpoint import Checkpoint, Directory, Folder, is_presharded, load
from tpspec.config import CONFIG, parse_config, read_config, with_quantization
from tpspec.errors import TpspecError
from tpspec.file_names import STATE
from tpspec.weight_files import may_hold_weights

ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[^\s@]+))?", re.ASCII)
FILE_SUFFIXES = (".json", ".safetensors", ".bin", ".gguf", ".pt", ".pth", ".yaml")


@dataclass(frozen=True, slots=True)
class ModelId:
    """A model on the Hugging Face Hub; without a revision, its default branch."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


@dataclass(frozen=True, slots=True)
class Located:
    """A model's config, and its checkpoint where there is more than a config."""

    name: str
    config: dict[str, Any]
    checkpoint: Checkpoint | None


def locate(text: str) -> Located:
    """Opens a directory, a .json file, or `org/name[@revision]` from the cache or by its headers.

    A pre-sharded directory stands for the checkpoint that it was made from.
    Raises TpspecError for anything else, and with all faults of the checkpoint.
    """
    path = Path(text)
    if text and path.is_dir():
        if (path / STATE).is_dir():
            remedy = f"give the command again that was writing it, or remove {text}"
            raise TpspecError(f"{text} is an unfinished conversion", remedy=remedy)
        return _open_presharded(text, path) if is_presharded(path) else _open(text, Directory(path))
    if text and path.exists():
        return _open_config(text, path)
    model = parse_id(text)
    from tpspec.hub_folder import cached_snapshot, is_complete, is_offline, open_folder

    snapshot = cached_snapshot(model)
    if snapshot and is_complete(snapshot):
        return _open(text, snapshot)
    if snapshot and is_offline():
        return _open_config(text, snapshot.path / CONFIG)
    return _open(text, open_folder(model))


def download(text: str) -> Path:
    """Downloads `org/name[@revision]` and returns its directory in the cache."""
    model = parse_id(text)
    from tpspec.hub_folder import download_model

    return download_model(model)


def parse_id(text: str) -> ModelId:
    """Parses `org/name[@revision]`. Raises TpspecError for what can only be a path."""
    match = ID.fullmatch(text)
    if not match or match["name"].endswith(FILE_SUFFIXES):
        raise TpspecError(
            f"{text}: no such file or directory",
            remedy="give a checkpoint directory, a config.json, or a model of the Hub as org/name[@revision]",
        )
    return ModelId(match["name"], match["revision"])


def _open(name: str, folder: Folder) -> Located:
    """Opens a checkpoint, or its config alone where no weights are beside it."""
    if not may_hold_weights(folder.names()):
        config = parse_config(folder.read(CONFIG), CONFIG)
        return Located(name, with_quantization(config, folder.names(), folder.read), None)
    checkpoint = load(folder)
    return Located(name, checkpoint.config, checkpoint)


def _open_presharded(name: str, path: Path) -> Located:
    from tpspec.presharded import Presharded

    presharded = Presharded.open(path)
    return Located(name, presharded.config, Checkpoint(path, presharded.config, presharded.files))


def _open_config(name: str, path: Path) -> Located:
    if path.suffix != ".json":
        raise TpspecError(
            f"{path} is neither a directory nor a .json file",
            remedy="give the directory that holds the checkpoint, or its config.json",
        )
    return Located(name, read_config(path), None)
