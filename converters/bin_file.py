"""One .bin file as torch.save wrote it: recognized, then unpickled without running code."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpspec.errors import Finding, TpspecError
from tpspec.regular_file import DOWNLOAD_AGAIN, open_regular

Tensors = Mapping[Any, Any]
"""What a .bin file holds: names → torch.Tensor, if it is sound."""

ZIP = b"PK\x03\x04"
"""How a file begins that can be mapped; those of torch before 1.6 cannot."""
BEFORE_ZIP = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""What the others begin with, a pickled number (torch.serialization.MAGIC_NUMBER), behind its protocol."""


def load_bin(path: Path) -> Tensors:
    """A file's tensors, mapped where they can be. Raises TpspecError for anything but a table.

    `weights_only` has torch build tensors and containers, and nothing else.
    """
    try:
        import torch
    except ImportError as error:
        remedy = "pip install 'tpspec[torch]', or convert the model to safetensors first"
        raise TpspecError(f"{path.name} needs torch to be read", remedy=remedy) from error
    mapped = _can_be_mapped(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # the unpickler raises whatever a broken file leads to
        raise _load_error(path.name, error) from error
    if not isinstance(loaded, Mapping):
        raise TpspecError(f"{path.name} holds a {type(loaded).__name__}, not a table of tensors")
    return loaded


def _can_be_mapped(path: Path) -> bool:
    """Whether torch can map a file. Raises TpspecError for one that torch.save has not written whole."""
    with open_regular(path, path.name) as file:
        start = file.read(32)
    names = _names_in_zip(path) if start.startswith(ZIP) else []
    if any(name.endswith("/constants.pkl") for name in names):
        raise TpspecError(f"{path.name} holds a TorchScript program, not a table of tensors")
    if not any(name.endswith("/data.pkl") for name in names) and BEFORE_ZIP not in start:
        message = f"{path.name} is not a PyTorch checkpoint file, or not the whole of one"
        raise TpspecError(message, remedy=DOWNLOAD_AGAIN)
    return bool(names)


def _names_in_zip(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except Exception:  # noqa: BLE001 - zipfile raises whatever a broken file leads to
        return []


def _load_error(name: str, error: Exception) -> TpspecError:
    """What is wrong with a file, without torch's advice on how to load it nevertheless."""
    if kind := re.search(r"GLOBAL (\S+)", str(error)):
        return TpspecError(
            f"{name} holds more than tensors; unpickling it could run code, so it is not read",
            [Finding(name, f"holds {kind[1]}")],
            remedy="get the model as safetensors, or convert it where you trust it",
        )
    said = isinstance(error, RuntimeError)
    problem = re.split(r"[.] |\n", str(error))[0] if said else "cannot be unpickled"
    return TpspecError(f"{name} is damaged", [Finding(name, problem)], remedy=DOWNLOAD_AGAIN)
