"""What a pass is handed of those before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import DynamicCache, LlamaConfig

from tpspec.runtime.decoding import keeps, kept_after, kept_at_first

MODEL = SimpleNamespace(config=LlamaConfig(num_hidden_layers=1))


@pytest.mark.parametrize(
    ("decode", "kept"),
    [
        (None, True),
        ("cache", True),
        ("own_cache", True),
        ("cache_params", True),
        ("full_ids", True),
        ("none", False),
    ],
)
def test_a_model_keeps_what_it_has_read_or_reads_it_again(decode, kept):
    assert keeps(decode) is kept


@pytest.mark.parametrize(("decode", "name"), [(None, "past_key_values"), ("cache_params", "cache_params")])
def test_what_a_model_gives_back_is_handed_on(decode, name):
    assert kept_at_first(MODEL, decode) == {}
    assert kept_after({name: "kept"}, decode, {}) == {name: "kept"}


def test_a_model_that_gives_nothing_back_is_handed_one_cache_throughout():
    handed = kept_at_first(MODEL, "own_cache")
    assert isinstance(handed["past_key_values"], DynamicCache)
    assert kept_after({}, "own_cache", handed) is handed
