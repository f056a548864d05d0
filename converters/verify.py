"""Checking a pre-sharded directory: by itself, or against the checkpoint that it was made from.

Either way every byte of every rank file is hashed and compared with what its cut gives of the whole tensors.
By itself, the whole tensors are those that the ranks hold together; their digests tell
whether they are the original's, and the comparison whether copies and padding agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tpspec.converters.checked_file import HEADER, CheckedFile, Checker
from tpspec.converters.feed import STRIP_BYTES, Feed, Progress
from tpspec.converters.originals import file_digests
from tpspec.converters.pipeline import dealt, opened
from tpspec.converters.readers import PreshardedReader, Reader
from tpspec.converters.targets import Visit, targets, visits
from tpspec.errors import Finding, TpspecError
from tpspec.presharded import Presharded, check_file, check_hash


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked, and everything that is wrong."""

    findings: tuple[Finding, ...]
    files: int
    tensors: int
    bytes: int


def verify(
    directory: Path,
    against: Reader | None = None,
    *,
    progress: Progress | None = None,
    strip_bytes: int = STRIP_BYTES,
) -> Verified:
    """Checks sizes, headers, hashes and contents. Raises TpspecError where the manifest is unusable."""
    presharded = Presharded.open(directory)
    manifest = presharded.manifest
    findings = [finding for record in manifest.copied for finding in check_file(directory, record)]
    broken = list(_check_headers(presharded))
    if broken:
        findings += broken
        for record in manifest.own_files():
            findings += check_file(directory, record)
    elif against and (differing := list(_check_tensors(presharded, against))):
        findings += differing
    else:
        findings += _check_contents(presharded, against, progress, strip_bytes)
    records = (*manifest.own_files(), *manifest.copied)
    size = sum(record.size for record in records)
    return Verified(tuple(dict.fromkeys(findings)), len(records), len(presharded.stored), size)


def _check_headers(presharded: Presharded) -> Iterator[Finding]:
    for rank in range(presharded.tp):
        try:
            presharded.rank_header(rank)
        except TpspecError as error:
            yield from error.findings
    try:
        presharded.extras_header()
    except TpspecError as error:
        yield from error.findings


def _check_tensors(presharded: Presharded, against: Reader) -> Iterator[Finding]:
    """Whether a source has the tensors that the directory was made from."""
    source = against.checkpoint
    for name, tensor in presharded.stored.items():
        found = source.tensors.get(name)
        if found is None:
            yield Finding(name, f"is not in {source.directory}")
        elif (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
            problem = f"is {found.dtype} {list(found.shape)} in {source.directory}"
            yield Finding(name, f"{problem}, but {tensor.dtype} {list(tensor.shape)} was cut")
    if not presharded.manifest.losses:
        for name in source.tensors.keys() - presharded.stored.keys():
            yield Finding(name, f"is in {source.directory}, but not in {presharded.directory}")


def _check_contents(
    presharded: Presharded, against: Reader | None, progress: Progress | None, strip_bytes: int
) -> Iterator[Finding]:
    manifest = presharded.manifest
    with nullcontext(against) if against else closing(PreshardedReader(presharded)) as reader:
        plan = visits(reader.checkpoint.tensors, presharded.layout, drop=False)
        files = [
            CheckedFile(target, presharded.directory / target.name) for target in targets(plan, presharded.tp)
        ]
        digests = _compare(reader, plan, files, progress, strip_bytes)
    for file, record in zip(files, manifest.own_files(), strict=True):
        yield from check_hash(record, file.hexdigest())
    for file in files:
        yield from _describe(file, plan, against)
    for source, digest in zip(
        manifest.sources, file_digests(presharded.files, digests).values(), strict=True
    ):
        if digest != source.digest:
            whose = f"in {against.checkpoint.directory}" if against else "put together from the ranks"
            problem = f"its tensors {whose} have the digest {digest}, those that were cut {source.digest}"
            yield Finding(source.name, problem)


def _compare(
    reader: Reader,
    plan: Sequence[Visit],
    files: Sequence[CheckedFile],
    progress: Progress | None,
    strip_bytes: int,
) -> dict[str, bytes]:
    """Compares every file with its part of every tensor; returns the tensors' digests."""
    with opened([Checker(mine) for mine in dealt(files)], strip_bytes) as pipeline:
        pipeline.submit(Checker.start, None)
        total = sum(visit.read_bytes(strip_bytes) for visit in plan)
        feed = Feed(reader, pipeline, strip_bytes, total, progress)
        digests = {
            visit.stored.name: feed.tensor(
                visit.stored, visit.layout.fold(), Checker.write, number=number, visit=visit, turn=turn
            )
            for number, visit in enumerate(plan)
            for turn in visit.turns(strip_bytes)
        }
        pipeline.submit(Checker.finish, None)
    return digests


def _describe(file: CheckedFile, plan: Sequence[Visit], against: Reader | None) -> Iterator[Finding]:
    expected = f"what {against.checkpoint.directory} gives" if against else "the other ranks' copies or zeros"
    name = file.target.name
    for number, byte in sorted(file.differs.items()):
        if number == HEADER:
            yield Finding(name, f"has another header than convert writes, from byte {byte} on")
        else:
            problem = f"is not {expected} from byte {byte} of its piece on"
            yield Finding(plan[number].layout.name, problem, place=name)
