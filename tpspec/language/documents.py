"""Reading one spec file into its pydantic model, with file:line in every complaint."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tpspec.errors import Finding, TpspecError
from tpspec.language import schema
from tpspec.language.yaml_source import MAX_BYTES, Document, parse_document
from tpspec.regular_file import read_regular


@dataclass(frozen=True)
class SpecFile:
    """One spec file: what it says, where each thing stands, and its bytes."""

    path: Path
    content: schema.SpecDocument
    source: Document
    raw: bytes

    def place(self, *key: str | int) -> str:
        return self.source.place(key)


def read_spec_file(path: Path, where: str) -> SpecFile:
    """Reads and checks one file. Raises TpspecError with all complaints at once."""
    raw = read_regular(path, MAX_BYTES, where)
    source = parse_document(raw, where)
    try:
        content = schema.SpecDocument.model_validate(source.data)
    except ValidationError as error:
        findings = {_finding(dict(entry), source): None for entry in error.errors()}
        raise TpspecError(f"{where} is not a valid spec", findings) from None
    return SpecFile(path, content, source, raw)


def _finding(entry: dict[str, Any], source: Document) -> Finding:
    key = tuple(entry["loc"])
    while key and key not in source.lines and entry["type"] != "extra_forbidden":
        key = key[:-1]
    subject = ".".join(str(part) for part in key if not isinstance(part, int))
    message = entry["msg"].removeprefix("Value error, ")
    remedy = ""
    if entry["type"] == "extra_forbidden":
        known = _keys_beside(key)
        close = get_close_matches(str(key[-1]), known, n=1)
        message = f"there is no key '{key[-1]}' here; the keys are {', '.join(known)}"
        remedy = f"did you mean '{close[0]}'?" if close else ""
    elif entry["type"] == "missing":
        message = f"the key '{entry['loc'][-1]}' is missing"
    return Finding(subject, message, source.place(_without_indices(key, source)), remedy)


def _without_indices(key: tuple[str | int, ...], source: Document) -> tuple[str | int, ...]:
    """The key as the file has it: a single rule is validated as a list of one."""
    if key in source.lines:
        return key
    return tuple(part for part in key if not isinstance(part, int))


def _keys_beside(key: tuple[str | int, ...]) -> list[str]:
    fields = _model_around(key).model_fields
    return [field.alias or name for name, field in fields.items()]


def _model_around(key: tuple[str | int, ...]) -> type[BaseModel]:
    match key:
        case (_,):
            return schema.SpecDocument
        case ("axes", *_):
            return schema.Axis
        case ("runtime", _):
            return schema.Runtime
        case ("runtime", *_):
            return schema.Slice
        case ("cache", *_):
            return schema.CacheEntry
        case ("memory", *_):
            kinds = (schema.Stack, schema.Split, schema.Rename)
            return next((kind for kind in kinds if kind.__name__ in key), schema.Stack)
        case (*_, "norm", _):
            return schema.Norm
    return schema.Rule
