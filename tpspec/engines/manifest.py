"""tpspec-export.json: what an export holds. It is written last, so that an export that has it is complete."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tpspec import json_strict
from tpspec.engines.schema import EngineName
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.file_names import EXPORT, carry_problem
from tpspec.layout import MAX_TP
from tpspec.manifest import FileRecord, is_hash
from tpspec.regular_file import read_regular

if TYPE_CHECKING:
    from pydantic import TypeAdapter

AGAINST = "compare it with its checkpoint: --against SRC"
REMOVE = f"export again, or remove {EXPORT} and {AGAINST}"
MAX_MANIFEST = 64 << 20
_RANK_FILE = re.compile(r"model-rank-(0|[1-9]\d{0,8})-part-[^/]*\.safetensors", re.ASCII)
"""What the loaders look for: any part's name."""


def rank_of(name: str) -> int | None:
    """The rank that a file of this name belongs to; None where it is no rank's."""
    match = _RANK_FILE.fullmatch(name)
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
    from pydantic import ValidationError

    path = directory / EXPORT
    if not path.is_file():
        return None
    text = read_regular(path, MAX_MANIFEST, EXPORT)
    json_strict.loads(text, EXPORT)  # for what pydantic takes: a key twice
    try:
        manifest = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        findings = [Finding(".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults]
    else:
        findings = list(_findings(manifest))
        if not findings:
            return manifest
    raise TpspecError(f"{EXPORT} is damaged or was edited", first_findings(findings), remedy=REMOVE)


@cache
def _adapter() -> TypeAdapter[ExportManifest]:
    from pydantic import TypeAdapter

    return TypeAdapter(ExportManifest)


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
    for name, count in Counter(record.name for record in records).items():
        if count > 1:
            yield Finding("files", f"{name!r:.80} stands {count} times")
    for record in records:
        if record.size < 0 or not is_hash(record.xxh3_128):
            yield Finding(record.name, f"has no sound size and hash: {record.size}, {record.xxh3_128!r:.40}")
