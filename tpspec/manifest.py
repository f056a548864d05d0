"""tpspec.json: what a pre-sharded directory holds, and how it becomes the checkpoint it was made from.

The manifest is written last, so that its presence means that the directory is complete. It needs
no spec to be read: it lists the cuts themselves, and the headers of the original files.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from tpspec import __version__, json_strict
from tpspec.config import CONFIG
from tpspec.errors import Finding, TpspecError, first_findings
from tpspec.file_names import EXPORT, EXTRAS, MANIFEST, STATE, carry_problem, is_plain, rank_file
from tpspec.layout import Cut, Share
from tpspec.padding import Order
from tpspec.regular_file import read_regular
from tpspec.safetensors_header import MAX_HEADER
from tpspec.weight_files import may_hold_weights

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
FORMAT = 1
"""Version of the layout of the directory; a reader accepts its own only."""
MAX_MANIFEST = 1 << 30
NOT_CUT = -1
"""In a source file's list of cuts: a tensor that no rank holds, whole in the extras file."""
EDITED = "convert the checkpoint again into a new directory"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the directory; `xxh3_128` is the hash that `xxhsum -H2` gives."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    name: str
    size: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A file of the original checkpoint, to be rebuilt.

    `header` is its raw safetensors header (without the 8 length bytes) as base64 of zlib, `digest` the
    XXH3-128 of the XXH3-128s of its tensors' bytes. For each of its tensors, in the order of their
    bytes, `cuts` says which of the manifest's cuts it has, and `places` where it stands in the order
    in which the rank files, and then the extras file, hold the tensors of all files.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    name: str
    size: int
    digest: str
    header: str
    cuts: tuple[int, ...]
    places: tuple[int, ...]

    def raw_header(self) -> bytes:
        """The header's bytes. Raises ValueError where they are damaged or absurdly many."""
        try:
            inflate = zlib.decompressobj()
            header = inflate.decompress(base64.b64decode(self.header, validate=True), MAX_HEADER)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not inflate.eof:
            raise ValueError("the compressed header does not end where it should")
        return header


def pack_header(header: bytes) -> str:
    """A raw header as a manifest holds it."""
    return base64.b64encode(zlib.compress(header, 6)).decode()


class SpecRecord(NamedTuple):
    """The spec that made the cuts, and the hash of the layout that came out of it."""

    name: str
    layout: str


class CutRecord(NamedTuple):
    """A `Cut` as JSON: [dim, size, shares]."""

    dim: int | None
    size: int
    shares: tuple[Share | None, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of tpspec.json.

    `pad` is the order in which zero units were chosen, where they were; `padding` gives the real and
    the padded size of the tensors that have zeros (a vocabulary always may). `losses` says why
    merging gives equal values but not the original files' bytes; empty where it gives the bytes.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    format: int
    tpspec: str
    spec: SpecRecord
    tp: int
    padding: dict[str, tuple[int, int]]
    losses: tuple[str, ...]
    index: str | None
    sources: tuple[SourceRecord, ...]
    cuts: tuple[CutRecord, ...]
    ranks: tuple[FileRecord, ...]
    extras: FileRecord | None
    copied: tuple[FileRecord, ...]
    pad: Order | None = None

    def encode(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    def own_files(self) -> tuple[FileRecord, ...]:
        """The rank files and the extras file."""
        return (*self.ranks, self.extras) if self.extras else self.ranks


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks a directory's manifest. Raises TpspecError with all that is wrong."""
    if not (directory / MANIFEST).exists():
        raise _no_manifest(directory)
    return parse_manifest(read_regular(directory / MANIFEST, MAX_MANIFEST, MANIFEST))


def _no_manifest(directory: Path) -> TpspecError:
    """What a path is that holds no manifest."""
    if not directory.is_dir():
        problem = "is a file, not a directory" if directory.exists() else "there is no such directory"
        remedy = "give the directory that tpspec convert wrote"
        return TpspecError(f"{directory}: {problem}", remedy=remedy)
    names = {entry.name for entry in directory.iterdir()}
    if STATE in names:
        return TpspecError(
            f"{directory} is not complete",
            [Finding(MANIFEST, "does not exist; it is written last, when every rank is there")],
            remedy="run the tpspec convert that was to write it: it goes on where it stopped",
        )
    if EXPORT in names:
        return TpspecError(
            f"{directory} is an export for an engine, which only that engine runs",
            remedy=f"check it with: tpspec verify {directory} --engine ENGINE",
        )
    if may_hold_weights(names):
        return TpspecError(
            f"{directory} is a checkpoint that has not been converted",
            remedy=f"convert it first: tpspec convert {directory} OUT --tp N",
        )
    return TpspecError(
        f"{directory} is not a directory that tpspec convert wrote",
        [Finding(MANIFEST, "does not exist")],
        remedy="give one that tpspec convert wrote",
    )


def parse_manifest(text: bytes) -> Manifest:
    """Checks a manifest's text by itself, without the files that it names."""
    document = json_strict.loads(text, MANIFEST)
    if document.get("format") != FORMAT:
        writer = document.get("tpspec")
        raise TpspecError(
            f"{MANIFEST} has format {document.get('format')!r:.20}, written by tpspec {writer!r:.20}; "
            f"tpspec {__version__} reads format {FORMAT} only",
            remedy="use the tpspec that wrote it, or convert the checkpoint again",
        )
    return validated(Manifest, text, _findings, MANIFEST, EDITED)


def validated(
    kind: Callable[..., T], text: bytes, findings: Callable[[T], Iterable[Finding]], name: str, remedy: str
) -> T:
    """The text as a manifest of some kind. Raises TpspecError with what its types or `findings` refuse."""
    from pydantic import ValidationError

    try:
        manifest: T = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        found = [Finding(".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults]
    else:
        found = list(findings(manifest))
        if not found:
            return manifest
    raise TpspecError(f"{name} is damaged or was edited", first_findings(found), remedy=remedy)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _findings(manifest: Manifest) -> Iterator[Finding]:
    tp = manifest.tp
    if len(manifest.ranks) != tp:
        yield Finding("ranks", f"{len(manifest.ranks)} rank files are listed for tp {tp}")
        return
    for rank, record in enumerate(manifest.ranks):
        if record.name != rank_file(rank, tp):
            yield Finding(f"ranks.{rank}", f"is called {record.name!r:.80}, not {rank_file(rank, tp)}")
    if manifest.extras and manifest.extras.name != EXTRAS:
        yield Finding("extras", f"is called {manifest.extras.name!r:.80}, not {EXTRAS}")
    yield from _source_name_findings([source.name for source in manifest.sources])
    yield from _copied_name_findings(manifest)
    yield from unsound((*manifest.own_files(), *manifest.copied))
    for number, row in enumerate(manifest.cuts):
        if problem := _cut_problem(Cut(*row), tp, ordered=manifest.pad is None):
            yield Finding(f"cuts.{number}", problem)
    for source in manifest.sources:
        if not is_hash(source.digest):
            yield Finding(source.name, f"has no sound digest: {source.digest!r:.40}")
        wrong = [number for number in source.cuts if not NOT_CUT <= number < len(manifest.cuts)]
        if wrong:
            yield Finding(source.name, f"uses cut {wrong[0]}; there are {len(manifest.cuts)} cuts")
        if len(source.cuts) != len(source.places):
            yield Finding(source.name, f"has {len(source.cuts)} cuts, but {len(source.places)} places")
    if any(NOT_CUT in source.cuts for source in manifest.sources) != bool(manifest.extras):
        yield Finding("extras", f"{EXTRAS} is listed without tensors for it, or the other way round")
    places = sorted(place for source in manifest.sources for place in source.places)
    if places != list(range(len(places))):
        yield Finding("sources", f"the places of the {len(places)} tensors are not 0 to {len(places) - 1}")


def _source_name_findings(names: Sequence[str]) -> Iterator[Finding]:
    for name in names:
        if not is_plain(name) or "/" in name:
            yield Finding("sources", f"{name!r:.80} is no name of a file inside the directory")
    yield from repeated("sources", names)


def _copied_name_findings(manifest: Manifest) -> Iterator[Finding]:
    names = [record.name for record in manifest.copied]
    if CONFIG not in names:
        yield Finding("copied", f"{CONFIG} is not listed, without which nothing loads")
    for name in names:
        if problem := carry_problem(name):
            yield Finding("copied", f"{name!r:.80} {problem}")
    yield from repeated("copied", [*{source.name for source in manifest.sources}, *names])


def unsound(records: Iterable[FileRecord]) -> Iterator[Finding]:
    """The records whose size or hash can be none."""
    for record in records:
        if record.size < 0 or not is_hash(record.xxh3_128):
            yield Finding(record.name, f"has no sound size and hash: {record.size}, {record.xxh3_128!r:.40}")


def repeated(where: str, names: Iterable[str]) -> Iterator[Finding]:
    """The names that stand more than once."""
    for name, count in Counter(names).items():
        if count > 1:
            yield Finding(where, f"{name!r:.80} stands {count} times")


def _cut_problem(cut: Cut, tp: int, *, ordered: bool) -> str:
    """What keeps a cut from being merged; empty where nothing does.

    The segments of a rank are `ordered`, unless padding has a head twice on one.
    """
    if cut.tp != tp:
        return f"shares a dimension among {cut.tp} ranks, not {tp}"
    if cut.size < 0 or (cut.dim is None and cut.size != 1) or (cut.dim is not None and cut.dim < 0):
        return f"has dimension {cut.dim} of size {cut.size}"
    for rank, share in enumerate(cut.shares):
        held = [segment for segment in share or () if segment.source is not None]
        if any(segment.length < 1 for segment in share or ()):
            return f"gives rank {rank} a segment without a length"
        if any((s.source or 0) < 0 or (s.source or 0) + s.length > cut.size for s in held):
            return f"gives rank {rank} more than the {cut.size} indices that there are"
        if ordered and any((a.source or 0) + a.length > (b.source or 0) for a, b in pairwise(held)):
            return f"gives rank {rank} segments that are not in order"
    for start, stop, count in cut.copies():
        if not count:
            return f"gives the indices {start} to {stop} to no rank"
    return ""


def is_hash(value: object) -> bool:
    """Whether a value is an XXH3-128 in hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None
