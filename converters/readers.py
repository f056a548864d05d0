"""Where strips come from: a checkpoint's own files, or the rank files of a pre-sharded directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tpspec.checkpoint import Checkpoint, StoredTensor
from tpspec.converters.open_files import OpenFiles, stamp
from tpspec.converters.sinks import Bytes
from tpspec.converters.strips import Block, blocks, clip, owners
from tpspec.file_names import EXTRAS
from tpspec.layout import Fold, TensorLayout
from tpspec.presharded import Presharded


class Reader(Protocol):
    """A source of tensors' bytes, all of whose headers are known.

    `losses` says why merging will not give the original files' bytes; empty where it will.
    """

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def losses(self) -> tuple[str, ...]: ...

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        """Fills `out` with the tensor's bytes from `start` on."""

    def copied(self) -> Sequence[str]:
        """Names of the files to carry along unchanged."""

    def stamps(self) -> dict[str, list[int]]:
        """For each file that tensors are read from, its size and time of change."""

    def digests(self) -> dict[str, str]:
        """What the digests of the original files must come out as, where that is known."""

    def close(self) -> None: ...


class ReaderOver:
    """Reads as another reader does, but for what a class that is made of it does otherwise."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def checkpoint(self) -> Checkpoint:
        return self._reader.checkpoint

    @property
    def losses(self) -> tuple[str, ...]:
        return self._reader.losses

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        self._reader.read(tensor, start, out)

    def copied(self) -> Sequence[str]:
        return self._reader.copied()

    def stamps(self) -> dict[str, list[int]]:
        return self._reader.stamps()

    def digests(self) -> dict[str, str]:
        return self._reader.digests()

    def close(self) -> None:
        self._reader.close()


class CheckpointReader:
    """Reads a checkpoint's safetensors files."""

    losses = ()

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._files = OpenFiles(checkpoint.directory)

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        self._files.read(tensor.file, tensor.start + start, out)

    def copied(self) -> Sequence[str]:
        return self.checkpoint.aux_files()

    def stamps(self) -> dict[str, list[int]]:
        return {file.name: stamp(file.path) for file in self.checkpoint.files}

    def digests(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self._files.close()


class PreshardedReader:
    """Puts tensors together from the rank files of a pre-sharded directory."""

    def __init__(self, presharded: Presharded) -> None:
        manifest = presharded.manifest
        index = manifest.index.encode() if manifest.index is not None else None
        self.presharded = presharded
        self.checkpoint = Checkpoint(presharded.directory, presharded.config, presharded.files, index)
        self.losses = manifest.losses
        self._files = OpenFiles(presharded.directory)
        numbers = {name: number for number, name in enumerate(presharded.layout.tensors)}
        self._numbers = numbers
        self._starts = [np.zeros(len(numbers), np.int64) for _ in range(presharded.tp)]
        for rank, starts in enumerate(self._starts):
            for tensor in presharded.rank_header(rank).tensors:
                starts[numbers[tensor.name]] = tensor.start
        extras = presharded.extras_header()
        self._extras = {tensor.name: tensor.start for tensor in extras.tensors} if extras else {}

    def read(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        if tensor.name in self._extras:
            self._files.read(EXTRAS, self._extras[tensor.name] + start, out)
            return
        layout = self.presharded.layout.tensors[tensor.name]
        fold = layout.fold()
        at = 0
        for block in blocks(fold, start, start + out.size):
            size = block.rows * block.width
            self._read_block(layout, fold, block, out[at : at + size])
            at += size

    def _read_block(self, layout: TensorLayout, fold: Fold, block: Block, out: Bytes) -> None:
        inner = fold.inner
        rows = out.reshape(block.rows, -1)
        for rank, owned in owners(layout.cut):
            run = clip(owned, block.start, block.stop)
            if run is None:
                continue
            length = layout.cut.length(rank)
            name = self.presharded.manifest.ranks[rank].name
            base = int(self._starts[rank][self._numbers[layout.name]]) + block.outer * length * inner
            low = (run.source - block.start) * inner
            if block.rows == 1:
                size = run.length * (block.high - block.low)
                self._files.read(name, base + run.local * inner + block.low, out[low : low + size])
            else:
                local = np.empty((block.rows, length * inner), np.uint8)
                self._files.read(name, base, local.reshape(-1))
                rows[:, low : low + run.length * inner] = local[
                    :, run.local * inner : (run.local + run.length) * inner
                ]

    def copied(self) -> Sequence[str]:
        return [record.name for record in self.presharded.manifest.copied]

    def stamps(self) -> dict[str, list[int]]:
        records = self.presharded.manifest.own_files()
        return {record.name: stamp(self.presharded.directory / record.name) for record in records}

    def digests(self) -> dict[str, str]:
        return {source.name: source.digest for source in self.presharded.manifest.sources}

    def close(self) -> None:
        self._files.close()
