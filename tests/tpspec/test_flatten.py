"""What the config of a model of several parts says about its text model."""

from __future__ import annotations

import pytest

from tpspec.scope import flatten


def test_the_text_part_s_values_stand_over_the_whole_s():
    config = {
        "model_type": "whole",
        "hidden_size": 8,
        "text_config": {"model_type": "text", "vocab_size": 10},
    }
    flat = flatten(config)
    assert (flat["model_type"], flat["hidden_size"], flat["vocab_size"]) == ("text", 8, 10)


@pytest.mark.parametrize(
    ("whole", "text", "tied"),
    [
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, True),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, False),
        ({}, {"tie_word_embeddings": True}, True),
        ({}, {"tie_word_embeddings": False}, None),
        ({}, {}, None),
    ],
)
def test_whether_the_head_is_tied_is_the_whole_model_s_to_say(whole, text, tied):
    assert flatten({**whole, "text_config": text})["tie_word_embeddings"] is tied


def test_a_config_of_one_part_stays_as_it_is():
    assert flatten({"tie_word_embeddings": False}) == {"tie_word_embeddings": False}
