"""Expressions: what they compute, and what they refuse."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpspec.language.expressions import ExpressionError, parse, round_up, shown

CONFIG = {
    "hidden_size": 64,
    "heads": 8,
    "layer": 1,
    "kinds": ["full", "linear"],
    "attn": {"kv": 3},
    "by_layer": {"01": {"kv": 5}},
    "on": True,
    "factor": 2.5,
    "empty": [],
}


class Scope:
    def lookup(self, name: str) -> Any:
        return CONFIG.get(name)

    def local(self, axis: str) -> int:
        return {"q": 4, "kv": 2}[axis]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("head_dim or hidden_size // heads", 8),
        ("hidden_size / heads", 8),
        ("2 * local(kv) * 16", 64),
        ("local(q) // local(kv)", 2),
        ("kinds[layer] == 'linear' if kinds else layer % 2", True),
        ("kinds[layer] in ['linear', 'mamba']", True),
        ("attn.kv", 3),
        ("attn['kv']", 3),
        ("by_layer[layer].kv", 5),
        ("by_layer[layer + 1].kv", None),
        ("attn.missing", None),
        ("missing.kv", None),
        ("missing is None", True),
        ("true if missing is None else missing", True),
        ("missing == 3", False),
        ("layer in missing", False),
        ("layer not in missing", True),
        ("not missing and on", True),
        ("len(kinds)", 2),
        ("int(factor * 3)", 7),
        ("ceil(factor)", 3),
        ("round_up(65, 8)", 72),
        ("min(hidden_size, heads)", 8),
        ("1 < layer + 1 <= 2", True),
        ("-heads + 10", 2),
        ("5", 5),
    ],
)
def test_value(text: str, value: Any) -> None:
    assert parse(text).evaluate(Scope()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing + 1", "config.json has no missing"),
        ("missing < 1", "config.json has no missing"),
        ("len(missing)", "config.json has no missing"),
        ("hidden_size / 7", "64 / 7 leaves 1"),
        ("hidden_size // (heads - 8)", "divides by zero"),
        ("kinds[5]", "has no value"),
        ("'4' >= 16", "''4' >= 16' has no value: '4' is not a number"),
        ("kinds[-1]", "is negative"),
        ("'a' * heads", "not a number"),
        ("on + 1", "not a number"),
        ("hidden_size * 4611686018427387904", "too large"),
    ],
)
def test_no_value_says_why(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message.replace("(", r"\(")):
        parse(text).evaluate(Scope())


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "[x for x in kinds]",
        "heads ** 99999999",
        "f'{heads}'",
        "heads << 999999",
        "{'a': 1}",
        "open('x')",
        "int(heads, base=2)",
        "local('q')",
        "local(q, kv)",
        "kinds[0:1]",
        "x := 3",
        "heads +",
        "",
        "1j",
        "'a' if",
        "(" * 300 + ")" * 300,
        "1+" * 400 + "1",
    ],
)
def test_what_is_not_in_the_language_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


def test_attributes_are_keys_of_the_config_never_python_s() -> None:
    assert parse("heads.__class__").evaluate(Scope()) is None
    assert parse("attn.__class__").evaluate(Scope()) is None


def test_free_names_and_axes_are_known() -> None:
    expression = parse("local(kv) * head_dim if kinds[layer] == 'full' else true")
    assert expression.names == {"head_dim", "kinds", "layer"}
    assert expression.axes == {"kv"}


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_round_up_is_the_next_multiple(value: int, multiple: int) -> None:
    up = round_up(value, multiple)
    assert up % multiple == 0
    assert value <= up < value + multiple


@given(st.text(alphabet="ab10+-*/%()[]., <>=!'\"_andorifelse", max_size=40))
def test_any_text_has_a_value_or_an_expression_error(text: str) -> None:
    with suppress(ExpressionError):
        parse(text).evaluate(Scope())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing", "config.json has no missing"),
        ("kinds", "is not a positive count"),
        ("heads - 8", "heads - 8 = 0 is not a positive count"),
        ("on", "on = True is not a positive count"),
        ("factor", "factor = 2.5 is not a positive count"),
        ("heads * 4611686018427387", "is not a positive count"),
    ],
)
def test_a_count_is_a_whole_number_of_a_size_that_models_have(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message.replace("*", r"\*")):
        parse(text).count(Scope())


def test_a_value_of_any_length_does_not_fill_a_message() -> None:
    assert shown(10**5000) == "a number of 16610 bits"
    assert len(shown("x" * 10_000)) < 80


@pytest.mark.parametrize("text", ["-" * 400 + "1", "not " * 100 + "on"])
def test_depth_has_a_limit(text: str) -> None:
    with pytest.raises(ExpressionError, match="nested more than"):
        parse(text)
