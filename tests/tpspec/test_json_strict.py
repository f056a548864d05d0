from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpspec import json_strict
from tpspec.errors import TpspecError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a": 1, "b": 2, "a": 1}', "key 'a' stands 2 times"),
        (b'{"x": {"deep": 1, "deep": 2}}', "key 'deep' stands 2 times"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b"[1, 2]", "expected a JSON object, found list"),
        (b"null", "expected a JSON object, found NoneType"),
        (b"", "not JSON: Expecting value at line 1, column 1"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 1} x', "not JSON: Extra data"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
        (b'{"a": 1}'.decode().encode("utf-16"), "not UTF-8"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more digits than Python reads"),
    ],
)
def test_unsound_json_is_refused_by_one_error_that_names_the_file(text, problem):
    with pytest.raises(TpspecError) as caught:
        json_strict.loads(text, "some.json")
    (finding,) = caught.value.findings
    assert finding.subject == "some.json"
    assert problem in finding.problem
    assert finding.remedy


def test_infinity_is_read_where_it_is_allowed():
    value = json_strict.loads('{"a": [0.0, Infinity], "b": NaN}', "config.json", constants=True)
    assert value["a"] == [0.0, math.inf]
    assert math.isnan(value["b"])


def test_an_escaped_pair_of_surrogates_is_one_character():
    assert json_strict.loads(b'{"a": "\\ud83d\\ude00"}', "x") == {"a": "\N{GRINNING FACE}"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_any_object_that_python_writes_is_read_back(value):
    assert json_strict.loads(json.dumps(value), "x") == value
    assert json_strict.loads(json.dumps(value, ensure_ascii=False).encode(), "x") == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(text):
    with suppress(TpspecError):
        assert isinstance(json_strict.loads(text, "x"), dict)
