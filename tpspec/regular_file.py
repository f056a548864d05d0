"""Opening what must be a plain file, and saying what it is when it is not one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tpspec.errors import Finding, TpspecError

DOWNLOAD_AGAIN = "download the file again"
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, name: str = "", *, remedy: str = DOWNLOAD_AGAIN) -> BinaryIO:
    """Opens a regular file, or a link to one, unbuffered; `name` is what errors call it.

    Raises TpspecError for anything else, with `remedy` where there is nothing. The kind is looked up
    before opening, for opening a pipe would wait for its writer.
    """
    name = name or str(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.open("rb", buffering=0)
        finding = Finding(name, f"is {KINDS.get(stat.S_IFMT(mode), 'something')}, not a file")
    except FileNotFoundError:
        if path.is_symlink():
            target = path.readlink()
            finding = Finding(name, f"is a link to {target}, which does not exist", remedy=remedy)
        else:
            finding = Finding(name, "does not exist", remedy=remedy)
    except OSError as error:
        finding = Finding(name, error.strerror or str(error))
    raise TpspecError(f"cannot read {name}", [finding])


def read_regular(path: Path, limit: int, name: str = "", *, remedy: str = DOWNLOAD_AGAIN) -> bytes:
    """Reads a regular file whole. Raises TpspecError beyond `limit` bytes, or as `open_regular`."""
    name = name or str(path)
    with open_regular(path, name, remedy=remedy) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            finding = Finding(name, f"has {size} bytes, more than the {limit} that such a file may have")
            raise TpspecError(f"cannot read {name}", [finding])
        return file.read()


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns a failing read into an error that names the file."""
    try:
        yield
    except OSError as error:
        raise TpspecError(f"cannot read {name}: {error.strerror}") from error
