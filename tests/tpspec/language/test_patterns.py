"""Names with braces."""

from __future__ import annotations

import pytest

from tpspec.language.patterns import PatternError, compile_pattern, expand, skeleton_of


def test_alternatives_expand_and_ranges_stay() -> None:
    assert expand("model.layers.{layer}.{self_attn,attn}.{q,k}") == [
        "model.layers.{layer}.self_attn.q",
        "model.layers.{layer}.self_attn.k",
        "model.layers.{layer}.attn.q",
        "model.layers.{layer}.attn.k",
    ]


def test_alternatives_upon_alternatives_are_refused_before_they_are_made() -> None:
    with pytest.raises(PatternError, match=r"stands for 1073741824 names"):
        expand("{a,b}" * 30)


def test_names_bind_their_ranges() -> None:
    pattern = compile_pattern("model.layers.{layer}.mlp.experts.{expert}.w1")
    skeleton, numbers = skeleton_of("model.layers.12.mlp.experts.7.w1")
    assert skeleton == pattern.skeleton
    assert pattern.match(numbers) == (("layer", 12), ("expert", 7))


def test_literal_digits_have_to_agree() -> None:
    pattern = compile_pattern("h.{layer}.w1")
    assert pattern.match(["3", "1"]) == (("layer", 3),)
    assert pattern.match(["3", "2"]) is None


def test_a_padded_number_is_another_name() -> None:
    assert compile_pattern("h.{layer}.w").match(["03"]) is None


@pytest.mark.parametrize(
    "text", ["a.{b", "a.b}", "a..b", ".a", "a.", "", "a.{}", "a.{Layer}", "a.{b c}", "{a,}.b"]
)
def test_malformed_names_are_refused(text: str) -> None:
    with pytest.raises(PatternError):
        expand(text)


@pytest.mark.parametrize("text", ["a.*.b", "a.**.b", "a.b*", "a.{layer}1"])
def test_stars_and_digits_have_their_places(text: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(text)
