"""`tpspec diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from llama_plan import LLAMA, PLAN

from tpspec.cli.app import app
from tpspec.errors import TpspecError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["diff", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def test_a_plan_file_is_compared_with_the_spec_of_a_model(tmp_path: Path, config: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    diff = json.loads(run(str(plan), "--config", str(config), "--tp", "8", "--json"))
    assert [d["module"] for d in diff["differences"]] == ["lm_head"]
    assert diff["more_per_token"] == 256512


def test_a_model_is_compared_with_transformers_own_plan(config: Path) -> None:
    pytest.importorskip("transformers")
    output = run(str(config), "--tp", "8")
    assert "model.embed_tokens" in output
    assert "whole on every rank" in output
    assert "the logits are gathered" in output


def test_a_plan_file_needs_to_know_its_model(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("layers.*.mlp.up_proj: colwise\n")
    result = CliRunner().invoke(app, ["diff", str(plan), "--tp", "2"])
    assert result.exit_code == 2
    assert "--config PATH" in result.output


def test_a_file_that_is_no_plan_says_what_one_is(tmp_path: Path, config: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"layers": ["q_proj"]}')
    with pytest.raises(TpspecError, match="is no plan") as caught:
        run(str(plan), "--config", str(config), "--tp", "2")
    assert "colwise" in caught.value.remedy


def test_an_empty_plan_file_is_called_a_plan(tmp_path: Path, config: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("")
    with pytest.raises(TpspecError, match="a plan is a mapping of keys to values, and this is empty"):
        run(str(plan), "--config", str(config), "--tp", "2")
