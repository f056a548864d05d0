"""JSON as this program accepts it: UTF-8, one object, no key twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tpspec.errors import Finding, TpspecError


class _RefusedError(ValueError):
    """Raised inside the parser's hooks."""


def loads(text: bytes | str, where: str, *, constants: bool = False) -> dict[str, Any]:
    """Parses a JSON object; `where` names the file in errors, `constants` allows NaN and Infinity.

    Raises TpspecError for text that is not UTF-8, is no JSON, is no object, has a key twice, half
    a surrogate pair, nesting beyond the recursion limit or an integer beyond Python's digit limit.
    """
    try:
        value = _parse(text.decode() if isinstance(text, bytes) else text, constants)
    except (ValueError, RecursionError) as error:
        problem = _explain(error)
    else:
        if isinstance(value, dict):
            return value
        problem = f"expected a JSON object, found {type(value).__name__}"
    finding = Finding(where, problem, remedy="download the file again, or repair it")
    raise TpspecError(f"cannot read {where}", [finding])


def _parse(text: str, constants: bool) -> Any:
    parse_constant = float if constants else _refuse_constant
    value = json.loads(text, object_pairs_hook=_object, parse_constant=parse_constant)
    if "\\u" in text:  # such an escape may stand for half of a surrogate pair, which nothing can write
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _explain(error: ValueError | RecursionError) -> str:
    match error:
        case json.JSONDecodeError():
            return f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case UnicodeEncodeError():
            return "a string holds half of a surrogate pair"
        case RecursionError():
            return "brackets are nested too deeply"
        case _RefusedError():
            return str(error)
        case _:
            return "a number has more digits than Python reads"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        (twice, times), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _RefusedError(f"key {twice[:200]!r} stands {times} times in one object")
    return value


def _refuse_constant(constant: str) -> None:
    raise _RefusedError(f"{constant} is not a JSON number")
