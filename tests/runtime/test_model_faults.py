"""What transformers refuses, or fails at, is told in words, by all that load a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from stories import STORIES, sharded
from tiny_models import variants_of
from tiny_ranks import tiny

from tpspec.errors import TpspecError
from tpspec.language.registry import spec_named
from tpspec.runtime import load
from tpspec.runtime.model_faults import ModelError
from tpspec.runtime.prove import checkpoint_subject

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"hidden_act": "nonsense"}, "KeyError: 'nonsense'"),
    ({"use_cache": "abc"}, "Field 'use_cache' expected bool, got str (value: 'abc')"),
    ({"rms_norm_eps": None}, "Field 'rms_norm_eps' expected float, got NoneType"),
    ({"rope_parameters": {"rope_type": "odd"}}, "KeyError: 'odd'"),
    ({"layer_types": ["full_attention"]}, "`num_hidden_layers` (5) must be equal to"),
    ({"head_dim": 0}, "ZeroDivisionError"),
]


def edited(model: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """A copy of a checkpoint, or of one that is cut, with another config."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def problems(error: pytest.ExceptionInfo[TpspecError]) -> list[str]:
    """What is said in one line each; where all is of config.json."""
    assert {finding.subject for finding in error.value.findings} == {"config.json"}
    assert error.value.remedy
    return [finding.problem for finding in error.value.findings]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda value: next(iter(value), ""))
def test_a_config_that_transformers_refuses_is_told_by_runs_and_proofs(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(TpspecError, match=r"transformers refuses .*/out/config\.json") as of_run:
        load(edited(sharded(2), tmp_path / "out", changes), threads=True, verify=False)
    source = edited(STORIES, tmp_path / "source", changes)
    with pytest.raises(TpspecError, match=r"transformers refuses .*/source/config\.json") as of_proof:
        checkpoint_subject(source, spec_named("llama"))
    assert problems(of_run) == problems(of_proof)
    assert words in problems(of_run)[0]
    assert "\n" not in problems(of_run)[0]


def test_generation_settings_that_transformers_refuses_are_told(tmp_path: Path) -> None:
    out = shutil.copytree(sharded(2), tmp_path / "out")
    (out / "generation_config.json").write_text('{"cache_implementation": 3}')
    with pytest.raises(TpspecError, match=r"transformers refuses .*/generation_config\.json"):
        load(out, threads=True, verify=False).generate([(1, 2)])


def test_a_pass_that_fails_names_the_module(tmp_path: Path) -> None:
    model = tiny(tmp_path, "mixtral")
    out = edited(model.out(2), tmp_path / "out", {"num_experts_per_tok": 99})
    with pytest.raises(ModelError, match=r"the forward pass fails at model\.layers\.0\.mlp.*: ") as error:
        load(out, threads=True, verify=False).generate([(1, 2)])
    assert "config.json" in error.value.remedy


def test_a_checkpoint_whose_tensors_transformers_does_not_find_is_not_proved() -> None:
    """A text model's names beside the config of the model that holds it."""
    (folder,) = [variant.folder for variant in variants_of("got_ocr2") if variant.name == "tiny"]
    with pytest.raises(TpspecError, match=r"loads .* with random numbers") as error:
        checkpoint_subject(folder, spec_named("got_ocr2"))
    assert error.value.findings[0].subject == "lm_head.weight"
    assert "does not find the checkpoint's tensors under these names" in error.value.remedy
