"""What an interrupted conversion leaves, so that the same command goes on where it stopped.

`OUT/.tpspec/` holds the plan, and for every target a journal (the XXH3-128 of each tensor visited
whose bytes are durable in the target) and a record (the source's times of change at the start; size, hash
and the source's digests at the end).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpspec import json_strict
from tpspec.converters.durable import write_durably, writing
from tpspec.converters.targets import Target
from tpspec.errors import Finding, TpspecError
from tpspec.file_names import STATE
from tpspec.manifest import is_hash

DIGEST_BYTES = 16


class Journal:
    """One target's progress. While it is open no other process writes the target."""

    def __init__(self, out: Path, target: Target) -> None:
        self.target = target
        self.digests: list[bytes] = []
        self._out = out
        self._state = out / STATE
        self._fd = os.open(self._state / f"{target.name}.journal", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise TpspecError(
                f"another tpspec is writing {target.name} into {out}",
                remedy="let it finish; of convert each may have its own --ranks",
            ) from None
        try:
            self.record = read_record(out, target)
        except TpspecError:
            os.close(self._fd)
            raise

    @property
    def partial(self) -> Path:
        return self._out / f"{self.target.name}.partial"

    @property
    def complete(self) -> bool:
        """Whether the target is there under its own name."""
        return is_complete(self._out, self.target, self.record)

    def begin(self, stamps: Mapping[str, list[int]]) -> None:
        """Finds what is durable, or begins anew where nothing is.

        Raises TpspecError where the source has changed since the bytes in the target were read.
        """
        content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        count = min(len(content) // DIGEST_BYTES, len(self.target.offsets) - 1)
        held = self.partial.stat().st_size if self.partial.is_file() else 0
        if not count or held < self.target.offsets[count] or not self.record:
            self._truncate(0)
            self.record = {"source": dict(stamps)}
            self._write_record()
            return
        if findings := list(changes(self.record["source"], stamps)):
            remedy = f"remove {self._out} and convert again"
            raise TpspecError(f"the source has changed since {self._out} was begun", findings, remedy)
        self._truncate(count)
        self.digests = [content[n * DIGEST_BYTES :][:DIGEST_BYTES] for n in range(count)]

    def advance(self, digests: Sequence[bytes]) -> None:
        """Notes that the bytes of the first `len(digests)` visits are durable."""
        new = b"".join(digests[len(self.digests) :])
        with writing(str(self._state)):
            os.pwrite(self._fd, new, len(self.digests) * DIGEST_BYTES)
            os.fdatasync(self._fd)
        self.digests = list(digests)

    def finish(self, xxh3_128: str, digests: Mapping[str, str]) -> None:
        """Gives the target, which is whole and durable, its own name."""
        self.record |= {"size": self.target.size, "xxh3_128": xxh3_128, "digests": dict(digests)}
        self._write_record()
        with writing(self.target.name):
            self.partial.rename(self._out / self.target.name)

    def close(self) -> None:
        os.close(self._fd)

    def _truncate(self, count: int) -> None:
        """Forgets what is durable beyond `count` visits, for good, before the file itself is cut."""
        if os.fstat(self._fd).st_size > count * DIGEST_BYTES:
            with writing(str(self._state)):
                os.ftruncate(self._fd, count * DIGEST_BYTES)
                os.fdatasync(self._fd)

    def _write_record(self) -> None:
        """Not synced: a record that a crash has lost means that the target is written again."""
        path = _record_path(self._out, self.target)
        aside = path.with_suffix(".partial")
        with writing(str(path)):
            aside.write_text(json.dumps(self.record))
            aside.rename(path)


def read_record(out: Path, target: Target) -> dict[str, Any]:
    """A target's record; empty where it has not been begun, or where a crash has lost it.

    Raises TpspecError for JSON that no run of ours has written.
    """
    path = _record_path(out, target)
    try:
        record = json_strict.loads(path.read_bytes(), path.name)
    except (FileNotFoundError, TpspecError):
        return {}
    if not _is_sound(record):
        raise state_error(out, path.name)
    return record


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record has the shape of one that is begun, or of one that is finished."""
    source, digests = record.get("source"), record.get("digests")
    begun = isinstance(source, dict) and all(map(_is_stamp, source.values()))
    if record.keys() == {"source"}:
        return begun
    return (
        begun
        and record.keys() == {"source", "size", "xxh3_128", "digests"}
        and isinstance(digests, dict)
        and all(map(is_hash, (record["xxh3_128"], *digests.values())))
    )


def _is_stamp(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)


def state_error(out: Path, name: str) -> TpspecError:
    """The error of a file of the progress that cannot be relied on."""
    message = f"{out / STATE / name} is damaged or was edited"
    return TpspecError(message, remedy=f"remove {out} and convert again")


def is_complete(out: Path, target: Target, record: Mapping[str, Any]) -> bool:
    """Whether a target is there under its own name, as its record says."""
    path = out / target.name
    return "xxh3_128" in record and path.is_file() and path.stat().st_size == target.size


def _record_path(out: Path, target: Target) -> Path:
    return out / STATE / f"{target.name}.json"


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keeps other conversions from starting or finishing in a directory; they wait."""
    fd = -1
    try:
        while fd < 0 or not os.fstat(fd).st_nlink:  # whoever finished meanwhile removed it
            if fd >= 0:
                os.close(fd)
            with writing(str(out)):
                (out / STATE).mkdir(parents=True, exist_ok=True)
                fd = os.open(out / STATE / "lock", os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def clear_state(out: Path) -> None:
    """Removes what a completed conversion no longer needs."""
    shutil.rmtree(out / STATE, ignore_errors=True)


def check_plan(out: Path, plan: Mapping[str, Any]) -> None:
    """Notes the plan, or compares it with the one that was begun. Raises TpspecError with what differs."""
    path = out / STATE / "plan.json"
    if not path.is_file():
        write_durably(path, json.dumps(plan, indent=1).encode())
        return
    try:
        begun = json_strict.loads(path.read_bytes(), path.name)
    except TpspecError as error:
        raise state_error(out, path.name) from error
    differing = [key for key in sorted(begun.keys() | plan.keys()) if begun.get(key) != plan.get(key)]
    findings = [
        Finding(key, f"was {_told(begun.get(key))} when {out} was begun, is {_told(plan.get(key))}")
        for key in differing
        if key != "tensors" or len(differing) == 1
    ]
    if findings:
        raise TpspecError(
            f"{out} was begun by another conversion",
            findings,
            remedy=f"give the options that it was begun with, or remove {out} and begin again",
        )


def _told(value: Any) -> str:
    return "not given" if value is None else str(value)


def changes(begun: Mapping[str, list[int]], now: Mapping[str, list[int]]) -> Iterator[Finding]:
    """The files of a source that are not what they were, by size and time of change."""
    for name in sorted(begun.keys() | now.keys()):
        if begun.get(name) != now.get(name):
            size, time = begun.get(name, (0, 0))
            size_now, time_now = now.get(name, (0, 0))
            change = f"from {size} bytes to {size_now}" if size != size_now else f"at {time_now / 1e9:.0f}"
            yield Finding(name, f"changed {change}, after {time / 1e9:.0f} (seconds since 1970)")
