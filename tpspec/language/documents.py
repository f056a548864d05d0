"""Reading one spec file into its pydantic model, with file:line in every complaint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tpspec.errors import TpspecError
from tpspec.language import schema
from tpspec.language.complaints import complaints
from tpspec.language.yaml_source import MAX_BYTES, Document, Key, parse_document
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
    raw = read_regular(path, MAX_BYTES, where, remedy="")
    source = parse_document(raw, where)
    try:
        content = schema.SpecDocument.model_validate(source.data)
    except ValidationError as error:
        findings = complaints(error, source, _keys_beside)
        raise TpspecError(f"{where} is not a valid spec", findings) from None
    return SpecFile(path, content, source, raw)


def _keys_beside(key: Key) -> list[str]:
    fields = _model_around(key).model_fields
    return [field.alias or name for name, field in fields.items()]


def _model_around(key: Key) -> type[BaseModel]:
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
