"""Which files of a checkpoint hold its weights, and whether they agree with the index."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tpspec import json_strict
from tpspec.errors import Finding, TpspecError
from tpspec.file_names import EXPORTED, is_plain
from tpspec.safetensors_header import StoredFile

_Key = TypeVar("_Key", str, tuple[str, ...])

Format = Literal["safetensors", "bin"]
SINGLE: dict[Format, str] = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
REMEDY = "download the checkpoint again: its files are not of one version"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The names of the weight files, sorted; with an index, its name, text and tensor → file map."""

    format: Format
    names: tuple[str, ...]
    index_name: str = ""
    index: bytes | None = None
    weight_map: Mapping[str, str] | None = None


def find_weights(names: Collection[str], read: Callable[[str], bytes]) -> WeightFiles:
    """Decides from a folder's file names; `read` gives the text of the index.

    Safetensors win over pytorch_model.bin, an index over numbered files without one. Raises
    TpspecError where there are no weights, where it is unclear which are meant, or for a bad index.
    """
    for form, single in SINGLE.items():
        index = f"{single}.index.json"
        if index in names:
            weights = _indexed(form, index, read(index))
            if single in names and single not in weights.names:
                problem = f"stands beside {index}, which does not list it"
                raise _error(Finding(single, problem, remedy=f"remove {single} or {index}"))
            return weights
        if single in names:
            return WeightFiles(form, (single,))
        if form == "safetensors" and (found := sorted(filter(_is_safetensors, names))):
            if unsound := [name for name in found if not _is_file_name(name, ".safetensors")]:
                problem = "has a name with characters that are not portable"
                raise _error(Finding(ascii(unsound[0]), problem, remedy="rename the file"))
            if any(map(EXPORTED.fullmatch, found)):
                problem = "these are an engine's ranks, which export or the engine wrote, and no checkpoint"
                remedy = "give what they were made of; to check them: tpspec verify DIR --engine ENGINE"
                raise _error(Finding("weights", problem, remedy=remedy))
            if len(found) > 1:
                _check_numbered(found)
            return WeightFiles(form, tuple(found))
    held = ", ".join(sorted({name[name.rindex(".") :] for name in names if "." in name[1:]}))
    problem = f"no {' or '.join(SINGLE.values())} here, and no index of either, only {held or 'nothing'}"
    raise _error(Finding("weights", problem, remedy="give the directory that holds a checkpoint's weights"))


def may_hold_weights(names: Iterable[str]) -> bool:
    """Whether a folder holds, or should hold, more than a config."""
    return any(name.endswith((".safetensors", ".bin", ".index.json")) for name in names)


def disagreements(weights: WeightFiles, files: Iterable[StoredFile]) -> list[Finding]:
    """Tensors stored twice, listed but not stored, or stored but not listed, grouped by file."""
    holders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for tensor in file.tensors:
            holders[tensor.name].append(file.name)
    twice = {name: tuple(held_by) for name, held_by in holders.items() if len(held_by) > 1}
    findings = [
        Finding(
            " and ".join(held_by),
            f"{'both' if len(held_by) == 2 else 'all'} hold {listing(tensors)}",
            remedy=REMEDY,
        )
        for held_by, tensors in _grouped(twice).items()
    ]
    if weights.weight_map is None:
        return findings
    read = {file.name for file in files}
    absent = {n: file for n, file in weights.weight_map.items() if file in read and file not in holders[n]}
    unlisted = {n: held_by[0] for n, held_by in holders.items() if n not in weights.weight_map}
    for by_file, problem in (
        (absent, "lacks what the index puts there"),
        (unlisted, "holds what the index omits"),
    ):
        findings += [
            Finding(file, f"{problem}: {listing(tensors)}", place=weights.index_name, remedy=REMEDY)
            for file, tensors in _grouped(by_file).items()
        ]
    return findings


def listing(names: Sequence[str], limit: int = 3) -> str:
    """The first few names and the number of the rest."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _indexed(form: Format, name: str, text: bytes) -> WeightFiles:
    weight_map = json_strict.loads(text, name).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _error(Finding(name, 'has no "weight_map" from tensors to files', remedy=REMEDY))
    if not all(isinstance(file, str) for file in weight_map.values()):
        raise _error(Finding(name, 'has a "weight_map" whose values are not all file names', remedy=REMEDY))
    findings = [
        Finding(name, f"puts {listing(tensors)} into {file!r:.200}, which is no name of a .{form} file here")
        for file, tensors in _grouped(weight_map).items()
        if not _is_file_name(file, f".{form}")
    ]
    if findings:
        raise _error(*findings)
    return WeightFiles(form, tuple(sorted(set(weight_map.values()))), name, text, weight_map)


def _is_safetensors(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith(".")  # macOS leaves ._model.safetensors


def _is_file_name(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and is_plain(name) and "/" not in name


def _check_numbered(names: Sequence[str]) -> None:
    """Without an index, several files are one checkpoint only as a complete numbered set."""
    matches = [NUMBERED.fullmatch(name) for name in names]
    sets = {(match["stem"], match["count"]) for match in matches if match}
    if len(sets) != 1 or not all(matches):
        problem = f"there are several files and no index that says which to read: {listing(names)}"
        raise _error(Finding("weights", problem, remedy=f"add {SINGLE['safetensors']}.index.json"))
    ((stem, count),) = sets
    expected = [f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
    if absent := [name for name in expected if name not in names]:
        problem = f"{len(names)} of {int(count)} files are here; absent: {listing(absent)}"
        raise _error(Finding("weights", problem, remedy="download the absent files"))
    if len(names) > len(expected):
        raise _error(Finding("weights", f"there are {len(names)} files numbered 1 to {int(count)}"))


def _grouped(items: Mapping[str, _Key]) -> dict[_Key, list[str]]:
    """The mapping turned round: value → its keys."""
    groups: dict[_Key, list[str]] = defaultdict(list)
    for key, value in items.items():
        groups[value].append(key)
    return groups


def _error(*findings: Finding) -> TpspecError:
    return TpspecError("it is unclear which files hold the weights", findings)
