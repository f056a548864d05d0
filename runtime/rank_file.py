"""A rank's file as tensors that are views of the mapped file: loading copies nothing."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from tpspec.safetensors_header import StoredFile, StoredTensor

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


class RankFile:
    """The mapped file. Pages are private to the process, so that nothing can write to the file."""

    def __init__(self, file: StoredFile) -> None:
        self.tensors = {tensor.name: tensor for tensor in file.tensors}
        self.names = tuple(self.tensors)
        with file.path.open("rb") as opened:
            self._mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, name: str) -> Tensor:
        """One tensor, a view of the file."""
        stored = self.tensors[name]
        return self._view(stored.dtype, stored.shape, stored.start)

    def join(self, names: list[str]) -> Tensor:
        """One tensor of several, concatenated along dimension 0; a view where they lie one after another."""
        stored = [self.tensors[name] for name in names]
        if _follow(stored):
            shape = (sum(tensor.shape[0] for tensor in stored), *stored[0].shape[1:])
            return self._view(stored[0].dtype, shape, stored[0].start)
        return torch.cat([self.tensor(name) for name in names])

    def stack(self, names: list[list[str]]) -> Tensor:
        """One tensor of several: each row's tensors concatenated along dimension 0, the rows stacked.

        Where the file holds them one after another, as rank files do, this too is a view.
        """
        rows = [[self.tensors[name] for name in row] for row in names]
        first = rows[0]
        width = sum(stored.shape[0] for stored in first)
        if _follow([stored for row in rows for stored in row]):
            return self._view(first[0].dtype, (len(rows), width, *first[0].shape[1:]), first[0].start)
        return torch.stack([torch.cat([self.tensor(stored.name) for stored in row]) for row in rows])

    def _view(self, dtype: str, shape: tuple[int, ...], start: int) -> Tensor:
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=DTYPES[dtype])
        flat = torch.frombuffer(self._mapped, dtype=DTYPES[dtype], count=count, offset=start)
        return flat.reshape(shape)


def _follow(tensors: list[StoredTensor]) -> bool:
    return all(before.stop == after.start for before, after in pairwise(tensors))
