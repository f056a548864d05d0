"""Checkpoints whose every byte follows from their tensors' names, and what identifies the ranks made of them.

They are described by config and shapes, so that what an engine makes of one can be recorded, and compared
without the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tpspec.dtypes import BITS
from tpspec.safetensors_header import encode_header, read_header

RECORDS = Path(__file__).parent / "fixtures" / "engines.json"
FILE = "model.safetensors"
FINITE = 0x3F7F3F7F
"""Bits that leave a float16, bfloat16 or float32 finite."""


def describe(folder: Path) -> dict[str, Any]:
    """A checkpoint's config, and dtype and shape of each tensor in the order of its file."""
    tensors = {tensor.name: [tensor.dtype, *tensor.shape] for tensor in read_header(folder / FILE).tensors}
    return {"config": json.loads((folder / "config.json").read_text()), "tensors": tensors}


def write(described: Mapping[str, Any], folder: Path) -> Path:
    """Writes the checkpoint that was described."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described["config"], indent=1))
    entries, content = [], []
    position = 0
    for name, (dtype, *shape) in described["tensors"].items():
        data = values(name, BITS[dtype] // 8 * prod(shape))
        entries.append((name, dtype, tuple(shape), position, position + len(data)))
        content.append(data)
        position += len(data)
    (folder / FILE).write_bytes(encode_header(entries, {"format": "pt"}) + b"".join(content))
    return folder


def values(name: str, size: int) -> bytes:
    """Finite numbers that follow from a name."""
    words = np.random.default_rng(xxhash.xxh64_intdigest(name.encode())).integers(
        0, 1 << 32, -(-size // 4), np.uint32
    )
    return (words & np.uint32(FINITE)).tobytes()[:size]


def digests(export: Path, tp: int) -> list[str]:
    """For each rank the XXH3-128 of its tensors' names, dtypes, shapes and bytes, by name."""
    return [_digest(export / f"model-rank-{rank}-part-0.safetensors") for rank in range(tp)]


def _digest(path: Path) -> str:
    content = path.read_bytes()
    digest = xxhash.xxh3_128()
    for tensor in sorted(read_header(path).tensors, key=lambda tensor: tensor.name):
        digest.update(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(content[tensor.start : tensor.stop])
    return digest.hexdigest()
