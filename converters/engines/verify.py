"""Checking a sharded_state directory, ours or one that an engine saved, against the checkpoint it is of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from tpspec.converters.engines.held_files import carried, check_hashes, disagreements, rank_files
from tpspec.converters.engines.held_rank import HeldRank
from tpspec.converters.engines.plan import Export
from tpspec.converters.feed import STRIP_BYTES, Feed, Progress
from tpspec.converters.pipeline import Pipeline, dealt
from tpspec.converters.readers import Reader
from tpspec.converters.sinks import Bytes, scatter
from tpspec.converters.targets import Visit
from tpspec.converters.verify import Verified
from tpspec.engines.engine import read_engine, versions_of
from tpspec.engines.layout import EngineLayout
from tpspec.engines.manifest import AGAINST, read_export
from tpspec.engines.resolve import engine_layout
from tpspec.errors import Finding, TpspecError
from tpspec.file_names import EXPORT
from tpspec.resolve import choose_spec, resolve


def verify_export(
    directory: Path,
    engine: str,
    against: Reader | None = None,
    spec_file: Path | None = None,
    release: str | None = None,
    *,
    progress: Progress | None = None,
) -> Verified:
    """Compares a directory with a source; without one, an export's files with what it says of them."""
    files = rank_files(directory)
    manifest = read_export(directory)
    lacking = sorted(set(range(max(files) + 1)) - files.keys())
    if manifest is None and lacking:
        raise TpspecError(f"{directory} holds a file of rank {max(files)}, but none of rank {lacking[0]}")
    if manifest and manifest.engine != engine:
        message = f"{directory} was exported for {manifest.engine}, not for {engine}"
        raise TpspecError(message, remedy=f"give --engine {manifest.engine}")
    findings = list(disagreements(manifest, files)) if manifest else []
    if against is None:
        if manifest is None:
            message = f"{directory} has no {EXPORT}, so nothing says what it should hold"
            raise TpspecError(message, remedy=AGAINST)
        document = read_engine(engine)
        if versions_of(document, release) != versions_of(document, release and manifest.names_of):
            title, written = document.title, manifest.names_of
            message = f"{directory} has the names of {title} {written}, not those of {release}"
            raise TpspecError(message, remedy=f"export it again, or serve it with {title} {written}")
        checked = check_hashes(directory, manifest, files)
        return replace(checked, findings=(*findings, *checked.findings))
    if findings:
        return Verified(tuple(findings), sum(map(len, files.values())), 0, 0)
    checkpoint = against.checkpoint
    spec = choose_spec(checkpoint.config, spec_file)
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors)
    release = release or (manifest.names_of if manifest else None)
    layout = engine_layout(resolution, read_engine(engine), len(files), release)
    compared = compare(directory, [files[rank] for rank in sorted(files)], against, layout, progress=progress)
    beside = carried(directory, manifest, against)
    return replace(compared, findings=(*compared.findings, *beside))


def compare(
    directory: Path,
    files: Sequence[Sequence[str]],
    source: Reader,
    layout: EngineLayout,
    *,
    progress: Progress | None = None,
    strip_bytes: int = STRIP_BYTES,
) -> Verified:
    """Compares every tensor of every rank with what the layout makes of a source."""
    work = Export(source, directory, layout)
    with ExitStack() as stack:
        ranks = [stack.enter_context(closing(HeldRank(directory, *of_rank))) for of_rank in enumerate(files)]
        findings = [finding for rank in ranks for finding in rank.expect(layout)]
        findings += _values(work, ranks, progress, strip_bytes)
    names = [name for of_rank in files for name in of_rank]
    size = sum((directory / name).stat().st_size for name in names)
    return Verified(tuple(findings), len(names), sum(len(rank.held) for rank in ranks), size)


def _values(
    work: Export, ranks: Sequence[HeldRank], progress: Progress | None, strip_bytes: int
) -> Iterator[Finding]:
    with Pipeline([_Checker(mine) for mine in dealt(ranks)], strip_bytes) as pipeline:
        total = sum(visit.read_bytes(strip_bytes) for visit in work.visits)
        feed = Feed(work.reader, pipeline, strip_bytes, total, progress)
        names = [tensor.name for tensor in work.layout.tensors for _ in tensor.pieces]
        for name, visit in zip(names, work.visits, strict=True):
            fold = visit.layout.fold()
            for turn in visit.turns(strip_bytes):
                feed.tensor(visit.stored, fold, _Checker.write, name=name, visit=visit, turn=turn)
            pipeline.submit(_Checker.end, None, name, visit)
    for rank in ranks:
        for name, tensor in rank.compared.items():
            if tensor.differs is not None:
                where = f"from byte {tensor.differs} of it on"
                problem = f"has other values than {work.source.checkpoint.directory} gives, {where}"
                yield Finding(name, problem, place=tensor.stored.file)


class _Checker:
    """Compares some ranks, in a thread of its own."""

    def __init__(self, ranks: Sequence[HeldRank]) -> None:
        self._ranks = ranks

    def write(self, start: int, strip: Bytes, name: str, visit: Visit, turn: int | None) -> None:
        """Compares each rank's part of a strip of a piece, which follows the pieces that have ended."""
        fold = visit.layout.fold()
        for rank in self._ranks:
            tensor, share = rank.compared.get(name), visit.layout.cut.shares[rank.rank]
            if tensor and share:
                scatter(strip, start, fold, share, tensor.begin, tensor, turn)

    def end(self, name: str, visit: Visit) -> None:
        """Compares what is left of a piece, which should be zeros."""
        for rank in self._ranks:
            if tensor := rank.compared.get(name):
                tensor.fill(tensor.begin + visit.layout.local_bytes(rank.rank))
                tensor.begin = tensor.position
