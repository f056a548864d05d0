"""The files that merging will rebuild: the source's own, or what is left of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import xxhash

from tpspec import json_strict
from tpspec.checkpoint import Checkpoint, StoredFile
from tpspec.safetensors_header import encode_header, parse_header


def without(checkpoint: Checkpoint, dropped: Collection[str]) -> Checkpoint:
    """The checkpoint as it is without some tensors: headers and index that do not name them."""
    if not dropped:
        return checkpoint
    names = set(dropped)
    files = tuple(_file_without(file, names) for file in checkpoint.files)
    index = _index_without(checkpoint.index, names) if checkpoint.index else None
    return replace(checkpoint, files=files, index=index)


def _file_without(file: StoredFile, dropped: Collection[str]) -> StoredFile:
    if not any(tensor.name in dropped for tensor in file.tensors):
        return file
    entries, position = [], 0
    for tensor in file.tensors:
        if tensor.name not in dropped:
            start, position = position, position + tensor.stop - tensor.start
            entries.append((tensor.name, tensor.dtype, tensor.shape, start, position))
    metadata = json_strict.loads(file.header, file.name).get("__metadata__")
    header = encode_header(entries, metadata)
    return parse_header(file.path, header[8:], len(header) + position)


def _index_without(index: bytes, dropped: Collection[str]) -> bytes:
    """Keeps the index's own keys; only the map loses names."""
    document = json_strict.loads(index, "index")
    document["weight_map"] = {k: v for k, v in document["weight_map"].items() if k not in dropped}
    return json.dumps(document, indent=2).encode() + b"\n"


def file_digests(files: Sequence[StoredFile], of_tensors: Mapping[str, bytes]) -> dict[str, str]:
    """For each file the XXH3-128 of its tensors' XXH3-128s, in the order of their bytes."""
    return {
        file.name: xxhash.xxh3_128(b"".join(of_tensors[t.name] for t in file.tensors)).hexdigest()
        for file in files
    }
