"""YAML with line numbers, and what is refused in it."""

from __future__ import annotations

import pytest

from tpspec.errors import TpspecError
from tpspec.language.yaml_source import MAX_BYTES, parse_document


def test_every_value_knows_its_line() -> None:
    document = parse_document(b"a: 1\nb:\n  c: [1, 2]\n  d:\n    - x\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": [1, 2], "d": ["x"]}}
    assert document.place(("b", "d", 0)) == "f.yaml:5"
    assert document.place(("b", "c")) == "f.yaml:3"
    assert document.place(("b", "unheard", "of")) == "f.yaml:2"


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\n"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (BOMB, "f.yaml:1: anchors and aliases"),
        (b"a: &x {b: *x}\n", "anchors and aliases"),
        (b"a: 1\nb: 2\na: 3\n", "twice, first on line 1"),
        (b"a: !!python/object/apply:os.system [true]\n", "is not allowed"),
        (b"a: !x 1\n", "tag !x is not allowed"),
        (b"a: 2020-01-01\n", "timestamp is not allowed"),
        (b"a: !!bool maybe\n", "f.yaml:1.*|is not a value of the kind 'bool'"),
        (b"a: !!int ''\n", "is not a value of the kind 'int'"),
        (b"a: !!float ''\n", "is not a value of the kind 'float'"),
        (b"a: !!map foo\n", "YAML tag tag:yaml.org,2002:map is not allowed"),
        (b"a: !!seq {b: 1}\n", "2002:seq is not allowed"),
        (b"a: [1, 2\n", "f.yaml:2: not YAML"),
        (b"- a\n- b\n", "a spec is a mapping"),
        (b"", "a spec is a mapping"),
        (b"a: " + b"[" * 50 + b"]" * 50, "nested more than"),
        (b"a: " + b"[" * 50_000 + b"]" * 50_000, "nest"),
        (b"a: \xff\n", "not UTF-8"),
        (b"a: 'x\0y'\n", "not YAML"),
        (b"[1]: 2\n", "a key must be text"),
        (b"#" * (MAX_BYTES + 1), "at most"),
    ],
)
def test_refused_with_its_place(raw: bytes, message: str) -> None:
    with pytest.raises(TpspecError, match=message):
        parse_document(raw, "f.yaml")
