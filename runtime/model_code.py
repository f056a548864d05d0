"""Model code that transformers does not have: a file of the user's that registers it."""

from __future__ import annotations

import runpy
import sys
import threading
from pathlib import Path

from transformers.utils import logging

_REGISTERING = threading.Lock()
_registered: set[Path] = set()


def register_once(path: Path) -> None:
    """Does so where this process has not done it yet, for transformers refuses a second time."""
    with _REGISTERING:
        if path not in _registered:
            register_code(path)
            _registered.add(path)


def register_code(path: Path | None) -> None:
    """Runs a Python file that registers its classes with AutoConfig and AutoModelForCausalLM.

    The file is the user's choice, named on the command line; code inside checkpoints is never run.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if path is None:
        return
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        runpy.run_path(str(path), run_name=path.stem)
    finally:
        sys.path.remove(folder)
