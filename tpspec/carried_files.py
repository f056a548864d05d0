"""The files that go along with a checkpoint's weights: config, tokenizer, code, licence."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tpspec.errors import TpspecError

WEIGHT_SUFFIXES = {
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack"),
    *(".onnx", ".onnx_data", ".ot", ".npz", ".tflite"),
}
MAX_FOLDER_BYTES = 16 << 20
MAX_FOLDER_FILES = 1000


def list_files(directory: Path) -> list[tuple[str, int]]:
    """A directory's files as (path with slashes, size), without hidden ones and linked folders.

    What is no regular file, and a link that leads nowhere, is listed with size 0. Raises
    TpspecError for a folder that cannot be read: what is in it would be left out unnoticed.
    """
    found = []
    for folder, folders, names in os.walk(directory, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            found.append((path.relative_to(directory).as_posix(), _size(path)))
    return found


def _refuse(error: OSError) -> None:
    remedy = "make the folder readable, or remove it"
    raise TpspecError(f"cannot read the folder {error.filename}: {error.strerror}", remedy=remedy)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # opening the file will say what it is
        return 0


def carried(files: Iterable[tuple[str, int]]) -> list[str]:
    """Chooses from files given as (path with slashes, size).

    All but weights in any format, index files and hidden files; a subfolder goes along if it is
    small and without weights (chat templates do; `original/` and `onnx/` do not).
    """
    chosen = []
    folders: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, size in files:
        top, _, rest = path.partition("/")
        if any(part.startswith(".") for part in path.split("/")):
            continue
        if rest:
            folders[top].append((path, size))
        elif not _is_weight(path) and not path.endswith(".index.json"):
            chosen.append(path)
    for inside in folders.values():
        names = [path for path, _ in inside]
        small = sum(size for _, size in inside) <= MAX_FOLDER_BYTES and len(names) <= MAX_FOLDER_FILES
        if small and not any(map(_is_weight, names)):
            chosen += names
    return sorted(chosen)


def _is_weight(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in WEIGHT_SUFFIXES
