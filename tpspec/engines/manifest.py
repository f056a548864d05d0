"""tpspec-export.json: what an export holds. It is written last, so that an export that has it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from tpspec import json_strict
from tpspec.engines.schema import EngineName
from tpspec.errors import Finding
from tpspec.file_names import EXPORT, EXPORTED, carry_problem
from tpspec.layout import MAX_TP
from tpspec.manifest import FileRecord, repeated, unsound, validated
from tpspec.regular_file import read_regular

AGAINST = "compare it with its checkpoint: --against SRC"
REMOVE = f"export again, or remove {EXPORT} and {AGAINST}"
MAX_MANIFEST = 64 << 20


def rank_of(name: str) -> int | None:
    """The rank that a file of this name belongs to; None where it is no rank's."""
    match = EXPORTED.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """All of tpspec-export.json.

    `names_of` is the engine's release whose names the tensors have, `files` are the ranks', and `copied`
    what went along.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    tpspec: str
    engine: EngineName
    names_of: str
    tp: int
    files: tuple[FileRecord, ...]
    copied: tuple[FileRecord, ...]

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def read_export(directory: Path) -> ExportManifest | None:
    """A directory's manifest, None where it has none. Raises TpspecError where it cannot be relied on."""
    path = directory / EXPORT
    if not path.is_file():
        return None
    text = read_regular(path, MAX_MANIFEST, EXPORT)
    json_strict.loads(text, EXPORT)  # for what pydantic takes: a key twice
    return validated(ExportManifest, text, _findings, EXPORT, REMOVE)


def _findings(manifest: ExportManifest) -> Iterator[Finding]:
    tp, records = manifest.tp, (*manifest.files, *manifest.copied)
    if not 1 <= tp <= MAX_TP:
        yield Finding("tp", f"{tp} is not between 1 and {MAX_TP}")
        return
    ranks = [rank_of(record.name) for record in manifest.files]
    for record, rank in zip(manifest.files, ranks, strict=True):
        if rank is None or rank >= tp:
            yield Finding("files", f"{record.name!r:.80} is no file of a rank of tp {tp}")
    if lacking := sorted(set(range(tp)) - set(ranks)):
        yield Finding("files", f"lists no file of rank {lacking[0]}, for tp {tp}")
    for record in manifest.copied:
        if problem := carry_problem(record.name):
            yield Finding("copied", f"{record.name!r:.80} {problem}")
    yield from repeated("files", (record.name for record in records))
    yield from unsound(records)
