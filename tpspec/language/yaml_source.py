"""YAML with line numbers, so that every error can say file:line.

The subset is plain data: mappings with text keys, lists, text, numbers, booleans, null. Anchors,
aliases, custom tags and duplicate keys are refused (an alias can make ten lines expand to
gigabytes, and a duplicate key silently loses a rule).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tpspec.errors import Finding, TpspecError
from tpspec.regular_file import read_regular

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Key = tuple[str | int, ...]

_TAGS = {
    kind: {f"tag:yaml.org,2002:{name}" for name in names}
    for kind, names in (
        (yaml.MappingNode, ("map",)),
        (yaml.SequenceNode, ("seq",)),
        (yaml.ScalarNode, ("str", "int", "float", "bool", "null")),
    )
}


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed data, and the line (from 1) of each value by its path of keys and indices."""

    data: dict[str, Any]
    lines: Mapping[Key, int]
    where: str

    def place(self, key: Key) -> str:
        """`file:line` of a value, or of the nearest thing around it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.where}:{self.lines.get(key, 1)}"


def read_document(path: Path, where: str | None = None, what: str = "spec") -> Document:
    """Reads a YAML file whose top level is a mapping. Raises TpspecError with file:line."""
    where = where or str(path)
    return parse_document(read_regular(path, MAX_BYTES, where, remedy=""), where, what)


def parse_document(raw: bytes, where: str, what: str = "spec") -> Document:
    """Parses YAML whose top level is a mapping; `what` is what errors call it.

    Raises TpspecError with file:line.
    """
    if len(raw) > MAX_BYTES:
        raise TpspecError(f"{where}: {len(raw)} bytes; a {what} has at most {MAX_BYTES}")
    try:
        text = raw.decode()
        _refuse_references(text, where)
        node = yaml.compose(text, Loader)
    except UnicodeDecodeError as error:
        raise TpspecError(f"{where}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise TpspecError(f"{where}{line}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(node, yaml.MappingNode):
        empty = ", and this is empty" if node is None else ""
        raise TpspecError(f"{where}:1: a {what} is a mapping of keys to values{empty}")
    lines: dict[Key, int] = {}
    findings: list[Finding] = []
    data = _construct(node, (), lines, findings, where)
    if findings:
        raise TpspecError(f"{where} is not a valid {what}", findings)
    return Document(data, lines, where)


def _refuse_references(text: str, where: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader):
        place = f"{where}:{event.start_mark.line + 1}" if event.start_mark else where
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise TpspecError(f"{place}: anchors and aliases are not allowed; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise TpspecError(f"{place}: nested more than {MAX_DEPTH} deep")


def _construct(node: Any, key: Key, lines: dict[Key, int], findings: list[Finding], where: str) -> Any:
    lines[key] = node.start_mark.line + 1
    if node.tag not in _TAGS[type(node)]:
        problem = f"YAML tag {node.tag} is not allowed"
        findings.append(Finding(".".join(map(str, key)), problem, f"{where}:{lines[key]}"))
        return None
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*key, i), lines, findings, where) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode):
                findings.append(Finding("", "a key must be text", f"{where}:{line}"))
                continue
            if name.value in result:
                first = lines[(*key, name.value)]
                problem = f"key appears twice, first on line {first}"
                findings.append(Finding(name.value, problem, f"{where}:{line}"))
            result[name.value] = _construct(value, (*key, name.value), lines, findings, where)
            lines[(*key, name.value)] = line
        return result
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, OverflowError, LookupError, TypeError):
        kind = node.tag.rpartition(":")[2]
        findings.append(
            Finding(node.value[:60], f"is not a value of the kind '{kind}'", f"{where}:{lines[key]}")
        )
        return None
