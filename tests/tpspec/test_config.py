from __future__ import annotations

import math
import os

import pytest

from tpspec.config import MAX_BYTES, model_types, read_config
from tpspec.errors import TpspecError


def test_a_config_is_read_with_the_infinity_that_published_ones_hold(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bamba", "time_step_limit": [0.0, Infinity]}')
    assert read_config(path) == {"model_type": "bamba", "time_step_limit": [0.0, math.inf]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"", "not JSON"),
        (b"[]", "expected a JSON object, found list"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "key 'hidden_size' stands 2 times"),
        (b"{" + b" " * MAX_BYTES + b"}", f"more than the {MAX_BYTES}"),
    ],
)
def test_an_unsound_config_is_refused(tmp_path, content, problem):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TpspecError) as caught:
        read_config(path)
    (finding,) = caught.value.findings
    assert finding.subject == "config.json"
    assert problem in finding.problem


@pytest.mark.timeout(5)
def test_a_pipe_in_the_place_of_a_config_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(TpspecError, match="is a named pipe, not a file"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("config", "types"),
    [
        ({"model_type": "llama"}, ("llama",)),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, ("gemma3", "gemma3_text")),
        ({"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2"}}, ("internvl_chat", "qwen2")),
        ({"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "vit"}}, ("llama",)),
        ({"model_type": "llama", "text_config": {"model_type": "llama"}}, ("llama",)),
        ({"model_type": "llama", "text_config": None}, ("llama",)),
    ],
)
def test_model_types_are_the_own_one_then_those_inside(config, types):
    assert model_types(config) == types


@pytest.mark.parametrize(
    "config", [{}, {"model_type": None}, {"model_type": ""}, {"model_type": 3}, {"text_config": []}]
)
def test_a_config_without_a_model_type_is_an_error_with_a_remedy(config):
    with pytest.raises(TpspecError, match='has no "model_type"') as caught:
        model_types(config)
    assert "--spec" in str(caught.value)
