"""Whether a directory may be written into, before the first byte is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tpspec.converters.journal import clear_state
from tpspec.errors import TpspecError
from tpspec.file_names import MANIFEST, STATE

ANOTHER = "give another directory"


def check_destination(out: Path, source: Path, manifest: str = MANIFEST) -> None:
    """Raises TpspecError unless `out` is absent, empty, or holds an interrupted run of ours.

    `manifest` is the file that makes the directory complete.
    """
    check_apart(out, source)
    if not out.is_dir():
        return
    names = sorted(entry.name for entry in out.iterdir())
    if manifest in names:
        clear_state(out)
        check = f"check it with: tpspec verify {out}; " if manifest == MANIFEST else ""
        raise TpspecError(
            f"{out} is complete already", remedy=f"{check}to make it anew, remove it or {ANOTHER}"
        )
    if names and STATE not in names:
        raise TpspecError(f"{out} is not empty: it holds {names[0]}", remedy=ANOTHER)


def check_apart(out: Path, source: Path) -> None:
    """Raises TpspecError where `out` cannot be a directory of its own, or cannot be written."""
    if out.is_symlink() and not out.exists():
        raise TpspecError(f"{out} is a link to {out.readlink()}, which does not exist", remedy=ANOTHER)
    if out.exists() and not out.is_dir():
        raise TpspecError(f"{out} is a file, not a directory", remedy=ANOTHER)
    real, origin = out.resolve(), source.resolve()
    if real == origin:
        raise TpspecError(f"{out} is the source itself", remedy=ANOTHER)
    if origin in real.parents:
        raise TpspecError(f"{out} lies inside the source {source}", remedy=ANOTHER)
    if real in origin.parents:
        raise TpspecError(f"{out} contains the source {source}", remedy=ANOTHER)
    existing = _existing(real)
    if not existing.is_dir():
        raise TpspecError(f"{out} cannot be made: {existing} is not a directory", remedy=ANOTHER)
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        raise TpspecError(f"{out} cannot be written: no permission to write in {existing}", remedy=ANOTHER)


def check_room(out: Path, needed: int) -> None:
    """Raises TpspecError where the disk has fewer bytes than are still to be written."""
    free = shutil.disk_usage(_existing(out.resolve())).free
    if free < needed:
        raise TpspecError(
            f"{out} needs {needed / 1e6:,.1f} MB more, its disk has {free / 1e6:,.1f} MB free",
            remedy=f"make room, or {ANOTHER}",
        )


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
