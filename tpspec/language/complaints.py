"""What pydantic finds wrong with a YAML file, by key and line, in words that need no pydantic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tpspec.errors import Finding
from tpspec.language.yaml_source import Document, Key

KINDS = {
    "string_type": "text",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
}


def complaints(
    error: ValidationError, source: Document, keys_beside: Callable[[Key], Sequence[str]]
) -> list[Finding]:

    return list(dict.fromkeys(_finding(entry, source, keys_beside) for entry in error.errors()))


def _finding(entry: ErrorDetails, source: Document, keys_beside: Callable[[Key], Sequence[str]]) -> Finding:
    key = tuple(entry["loc"])
    while key and key not in source.lines and entry["type"] != "extra_forbidden":
        key = key[:-1]
    subject = ".".join(str(part) for part in key if not isinstance(part, int))
    message = entry["msg"].removeprefix("Value error, ")
    remedy = ""
    if entry["type"] == "extra_forbidden":
        known = keys_beside(key)
        close = get_close_matches(str(key[-1]), known, n=1)
        message = f"there is no key '{key[-1]}' here; the keys are {', '.join(known)}"
        remedy = f"did you mean '{close[0]}'?" if close else ""
    elif entry["type"] == "missing":
        message = f"the key '{entry['loc'][-1]}' is missing"
    elif entry["type"] in KINDS:
        message = f"has to be {KINDS[entry['type']]}"
    return Finding(subject, message, source.place(_without_indices(key, source)), remedy)


def _without_indices(key: Key, source: Document) -> Key:
    """The key as the file has it: a single rule is validated as a list of one."""
    if key in source.lines:
        return key
    return tuple(part for part in key if not isinstance(part, int))
