"""Opens what a command is given as its source."""

from __future__ import annotations

from pathlib import Path

from tpspec.checkpoint import is_presharded, open_checkpoint
from tpspec.converters.readers import CheckpointReader, PreshardedReader, Reader
from tpspec.errors import TpspecError
from tpspec.presharded import Presharded


def open_source(text: str) -> Reader:
    """Opens a checkpoint directory, a pre-sharded one, or a Hugging Face id, which is downloaded first."""
    path = Path(text)
    if not path.exists():
        from tpspec.hub import download

        path = download(text)
    if not path.is_dir():
        raise TpspecError(f"{text} is a file", remedy="give the directory that it lies in")
    if is_presharded(path):
        return PreshardedReader(Presharded.open(path))
    checkpoint = open_checkpoint(path)
    if checkpoint.format == "bin":
        from tpspec.converters.bin_source import BinReader

        return BinReader(checkpoint)
    return CheckpointReader(checkpoint)
