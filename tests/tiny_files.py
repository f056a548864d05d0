"""Small safetensors files and checkpoints, written byte by byte so that any of them can be wrong."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

BYTES = {"U8": 1, "BF16": 2, "F32": 4}
CONFIG = {"model_type": "llama"}
Shapes = Mapping[str, tuple[int, ...]]


def entries(shapes: Shapes, dtype: str = "BF16") -> dict[str, Any]:
    """Header entries of tensors that follow one another."""
    table: dict[str, Any] = {}
    stop = 0
    for name, shape in shapes.items():
        start, stop = stop, stop + BYTES[dtype] * prod(shape)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
    return table


def open_to_others(folder: Path) -> None:
    """Lets other users through to a test's folder: pytest's own are for whoever runs the tests alone."""
    for each in (folder, *folder.parents):
        if each == Path(tempfile.gettempdir()):
            break
        each.chmod(0o755)


def file_bytes(header: object, data: int | None = None) -> bytes:
    """A file with this header (text, or something to write as JSON) and so many bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if data is None:
        assert isinstance(header, dict)
        data = max((e["data_offsets"][1] for name, e in header.items() if name != "__metadata__"), default=0)
    return len(text).to_bytes(8, "little") + text + bytes(n % 251 for n in range(data))


def write_checkpoint(folder: Path, shards: Mapping[str, Shapes], *, index: bool | None = None) -> Path:
    """A checkpoint of the given files; with an index where there are several, unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, shapes in shards.items():
        (folder / name).write_bytes(file_bytes(entries(shapes)))
    if len(shards) > 1 if index is None else index:
        write_index(folder, {tensor: name for name, shapes in shards.items() for tensor in shapes})
    return folder


def write_index(folder: Path, weight_map: object, name: str = "model.safetensors.index.json") -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / name).write_text(json.dumps(index))
