"""Files that survive a crash: written aside, synced, renamed into place."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpspec.errors import TpspecError

KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of linux/falloc.h."""


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turns a failing write into an error that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise write_error(name, error) from error


def write_error(name: str, error: OSError) -> TpspecError:
    """The error of a failed write: a full disk, a limit, a broken disk, no permission."""
    return TpspecError(
        f"cannot write {name}: {error.strerror}",
        remedy="put that right, then run the same command again",
    )


def reserve(fd: int, size: int) -> None:
    """Sets a file's blocks aside, where the file system can, without changing its size.

    A disk that is too small shows at once, and writing takes about half the time (ext4). Python's
    posix_fallocate cannot keep the size, and writes zeros where the file system cannot reserve.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        if number not in {errno.EOPNOTSUPP, errno.ENOSYS}:
            raise OSError(number, os.strerror(number))


def write_durably(path: Path, content: bytes) -> None:
    """Writes a small file so that it is whole or not there, whatever happens."""
    aside = path.with_name(path.name + ".partial")
    with writing(str(path)):
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
