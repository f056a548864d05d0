"""The header of a safetensors file, read without trust and written back.

A file is 8 bytes (the header's length, little-endian), a JSON header, then the tensors' bytes
without gaps. Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf, prod
from pathlib import Path
from typing import Any

from tpspec import json_strict
from tpspec.dtypes import BITS, nbytes
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.regular_file import DOWNLOAD_AGAIN, open_regular

MAX_HEADER = 100_000_000
"""The limit of the format's reference reader."""
MAX_DIMS = 64
MAX_BITS = 1 << 63
MAX_OFFSET = 1 << 63


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its bytes are `start : stop` of the file, counted from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A safetensors file, its tensors in the order of their bytes.

    `header` is the JSON with its padding, without the 8 length bytes before it.
    """

    name: str
    path: Path
    size: int
    header: bytes
    tensors: tuple[StoredTensor, ...]


def read_header(path: Path) -> StoredFile:
    """Reads and checks a file's header. Raises TpspecError with all that is wrong."""
    with open_regular(path, path.name) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(path.name, file.read(8), size)
        return parse_header(path, file.read(length), size)


def header_length(name: str, prefix: bytes, size: int) -> int:
    """The header's length, from a file's first 8 bytes and its size."""
    if size < 8:
        raise _error(name, [_finding(name, None, f"has {size} bytes, fewer than the 8 of a header's length")])
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        problem = f"gives its header {length} bytes, more than the {MAX_HEADER} that the format allows"
        raise _error(name, [_finding(name, None, problem)])
    if 8 + length > size:
        problem = f"gives its header {length} bytes, but ends {size - 8} bytes after the header's start"
        raise _error(name, [_finding(name, None, problem)])
    return length


def parse_header(path: Path, header: bytes, size: int) -> StoredFile:
    """Checks the header of a file of `size` bytes. Raises TpspecError with all that is wrong."""
    name = path.name
    entries = json_strict.loads(header, name)
    metadata = entries.pop("__metadata__", {})
    findings = []
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        findings.append(_finding(name, "__metadata__", "is not a table of strings"))
    data = 8 + len(header)
    tensors = []
    for key, entry in entries.items():
        problem = _entry_problem(key, entry)
        if problem:
            findings.append(_finding(name, key, problem))
        else:
            start, stop = entry["data_offsets"]
            shape = tuple(entry["shape"])
            tensors.append(StoredTensor(key, entry["dtype"], shape, name, data + start, data + stop))
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    if not findings:
        findings = _coverage_findings(name, tensors, data, size)
    if findings:
        raise _error(name, findings)
    return StoredFile(name, path, size, header, tuple(tensors))


def encode_header(
    entries: Iterable[tuple[str, str, tuple[int, ...], int, int]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A header, length bytes and padding to 8 included, that lists the tensors in the order given.

    An entry is (name, dtype, shape, start, stop), counted from the first byte after the header.
    """
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, dtype, shape, start, stop in entries:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _entry_problem(name: str, entry: Any) -> str:
    """What is wrong with one tensor's entry by itself; empty where nothing is."""
    if not name or not name.isprintable():
        return "is no name for a tensor"
    if not isinstance(entry, dict):
        return "is not described by a JSON object"
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        return f"has the unknown dtype {dtype!r:.80}"
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not _are_counts(shape):
        return f"has no shape of at most {MAX_DIMS} counts, but {shape!r:.80}"
    if not isinstance(offsets, list) or len(offsets) != 2 or not _are_counts(offsets, MAX_OFFSET):
        return f"has no data_offsets of a start and a stop, but {offsets!r:.80}"
    return _size_problem(dtype, shape, *offsets)


def _size_problem(dtype: str, shape: list[int], start: int, stop: int) -> str:
    if BITS[dtype] * prod(size or 1 for size in shape) >= MAX_BITS:
        return f"has the absurd shape {shape!r:.80}"
    try:
        expected = nbytes(dtype, shape)
    except ValueError as error:
        return str(error)
    if stop - start != expected:
        return f"takes bytes {start} to {stop}, which is {stop - start}, but {dtype} {shape} needs {expected}"
    return ""


def _are_counts(values: list[Any], limit: float = inf) -> bool:
    return all(type(value) is int and 0 <= value < limit for value in values)


def _coverage_findings(name: str, tensors: list[StoredTensor], data: int, size: int) -> list[Finding]:
    """Where the tensors' bytes overlap, leave gaps, or do not end where the file ends."""
    findings = []
    if tensors and tensors[0].start != data:
        problem = f"is the first, but starts {tensors[0].start - data} bytes after the header's end"
        findings.append(_finding(name, tensors[0].name, problem))
    for before, after in pairwise(tensors):
        if after.start < before.stop:
            problem = (
                f"starts at byte {after.start}, before {before.name} ends at {before.stop}: "
                f"they overlap by {min(before.stop, after.stop) - after.start} bytes"
            )
            findings.append(_finding(name, after.name, problem))
        elif after.start > before.stop:
            problem = (
                f"starts at byte {after.start}, but {before.name} ends at {before.stop}: "
                f"{after.start - before.stop} bytes belong to no tensor"
            )
            findings.append(_finding(name, after.name, problem))
    end = max((tensor.stop for tensor in tensors), default=data)
    if end > size:
        findings.append(_finding(name, None, f"is cut off: it has {size} bytes, its header needs {end}"))
    elif end < size:
        problem = f"has {size} bytes, {size - end} more than the {end} that its header describes"
        findings.append(_finding(name, None, problem))
    return findings


def _finding(file: str, tensor: str | None, problem: str) -> Finding:
    if tensor is None:
        return Finding(file, problem, remedy=DOWNLOAD_AGAIN)
    return Finding(
        tensor if tensor and tensor.isprintable() else ascii(tensor),
        problem,
        place=file,
        remedy=DOWNLOAD_AGAIN,
    )


def _error(name: str, findings: list[Finding]) -> TpspecError:
    return TpspecError(f"{name} is not a sound safetensors file", first_findings(findings))
