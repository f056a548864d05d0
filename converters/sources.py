"""Opens what a command is given as its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpspec.checkpoint import Checkpoint, is_presharded, open_checkpoint
from tpspec.converters.readers import CheckpointReader, PreshardedReader, Reader
from tpspec.errors import TpspecError
from tpspec.file_names import STATE
from tpspec.presharded import Presharded


def open_source(text: str, before_download: Callable[[Checkpoint], object] | None = None) -> Reader:
    """Opens a checkpoint directory, a pre-sharded one, or a Hugging Face id, which is downloaded first.

    `before_download` is given what the headers of a model on the Hub say; it may raise.
    """
    path = Path(text)
    if not path.exists():
        from tpspec.hub import download, locate

        checkpoint = locate(text).checkpoint
        if before_download and checkpoint and checkpoint.format == "safetensors":
            before_download(checkpoint)
        path = download(text)
    if not path.is_dir():
        raise TpspecError(f"{text} is a file", remedy="give the directory that it lies in")
    if is_presharded(path):
        presharded = Presharded.open(path)
        presharded.check_copied()
        return PreshardedReader(presharded)
    if (path / STATE).is_dir():
        remedy = "let the tpspec convert that was to write it end, or run it again"
        raise TpspecError(f"{path} is not complete", remedy=remedy)
    checkpoint = open_checkpoint(path)
    if checkpoint.format == "bin":
        from tpspec.converters.bin_source import BinReader

        return BinReader(checkpoint)
    return CheckpointReader(checkpoint)
