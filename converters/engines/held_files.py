"""Files of a sharded_state directory, compared whole: with what the export says, or with the source's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tpspec.config import CONFIG
from tpspec.converters.readers import Reader
from tpspec.converters.verify import Verified
from tpspec.engines.manifest import ExportManifest, rank_of
from tpspec.errors import Finding, TpspecError
from tpspec.file_names import EXPORT
from tpspec.presharded import check_file, hash_file
from tpspec.safetensors_header import read_header


def rank_files(directory: Path) -> dict[int, list[str]]:
    """The files of each rank. Raises TpspecError where the directory has none."""
    if not directory.is_dir():
        raise TpspecError(f"{directory} is not a directory", remedy="give the directory that holds the ranks")
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(directory.iterdir()):
        rank = rank_of(path.name)
        if rank is not None:
            found[rank].append(path.name)
    if not found:
        raise TpspecError(
            f"{directory} holds no model-rank-R-part-P.safetensors",
            remedy="give what export or the engine's saver wrote; without --engine, what convert wrote",
        )
    return found


def disagreements(manifest: ExportManifest, files: Mapping[int, Sequence[str]]) -> Iterator[Finding]:
    """What is missing of the files that an export lists, and what is there besides."""
    listed = {record.name for record in manifest.files}
    found = {name for names in files.values() for name in names}
    for rank in sorted({rank_of(name) or 0 for name in listed} - files.keys()):
        yield Finding(f"rank {rank}", "is missing")
    for name in sorted(listed - found):
        if rank_of(name) in files:
            yield Finding(name, "is missing")
    for name in sorted(found - listed):
        yield Finding(name, f"is not among the files that {EXPORT} lists for tp {manifest.tp}")


def check_hashes(directory: Path, manifest: ExportManifest, files: Mapping[int, Sequence[str]]) -> Verified:
    """Whether those files that an export lists and that are there are what was written."""
    there = {name for names in files.values() for name in names}
    present = [record for record in manifest.files if record.name in there]
    findings: list[Finding] = []
    tensors = 0
    for record in (*present, *manifest.copied):
        wrong = [replace(finding, remedy="") for finding in check_file(directory, record)]
        findings += wrong
        if record in present and not wrong:
            tensors += len(read_header(directory / record.name).tensors)
    return Verified(tuple(findings), len(present), tensors, sum(record.size for record in present))


def carried(directory: Path, manifest: ExportManifest | None, source: Reader) -> Iterator[Finding]:
    """Files beside the weights that are not the source's. An engine's saver leaves some of them out."""
    for name in source.copied():
        path = directory / name
        if not path.is_file():
            if manifest or name == CONFIG:
                yield Finding(name, "is missing")
        elif hash_file(path) != hash_file(source.checkpoint.directory / name):
            yield Finding(name, f"is not the file of that name in {source.checkpoint.directory}")
