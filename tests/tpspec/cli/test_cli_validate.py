"""`tpspec validate` and `tpspec show`, as people see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "models"
LLAMA_70B = MODELS / "Meta-Llama-3-70B" / "config.json"
STORIES = MODELS / "stories260k"


def test_tp_6_of_llama_3_70b_names_every_layer_that_breaks(tpspec: Callable[..., Any]) -> None:
    ran = tpspec("validate", LLAMA_70B, "--tp", "6")
    assert ran.status == 1
    lines = {line.split()[0]: line for line in ran.out.splitlines()[1:]}
    block = "model.layers.0-79"
    for name, numbers in {
        "self_attn.q_proj": "64 % 6 = 4",
        "self_attn.k_proj": "8 % 6 = 2",
        "self_attn.v_proj": "8 % 6 = 2",
        "self_attn.o_proj": "64 % 6 = 4",
        "mlp.gate_proj": "28672 % 6 = 4",
        "mlp.up_proj": "28672 % 6 = 4",
        "mlp.down_proj": "28672 % 6 = 4",
    }.items():
        assert numbers in lines.pop(f"{block}.{name}")
    assert lines.pop("valid").split("(")[0].strip() == "valid tp: 1, 2, 4, 8, 16, 32, 64"
    assert "KV heads are copied above 8" in ran.out
    assert not [name for name in lines if name.startswith("model")]


def test_the_cache_of_llama_3_70b_stops_shrinking_at_8(tpspec: Callable[..., Any]) -> None:
    report = json.loads(tpspec("validate", LLAMA_70B, "--tp", "1,2,4,8,16", "--json").out)
    assert [at["cache"]["per_token"] // 1024 for at in report["sizes"]] == [320, 160, 80, 40, 40]
    assert report["sizes"][4]["copies"] == {"kv": 2}


def test_json_carries_every_misfit(tpspec: Callable[..., Any]) -> None:
    ran = tpspec("validate", LLAMA_70B, "--tp", "8,6", "--json")
    report = json.loads(ran.out)
    assert ran.status == 1
    assert report["ok"] is False
    assert [at["fits"] for at in report["sizes"]] == [True, False]
    misfit = report["sizes"][1]["misfits"][0]
    assert misfit["module"] == "model.layers.0-79.self_attn.q_proj"
    assert misfit["numbers"] == "64 % 6 = 4"
    assert misfit["place"].startswith("specs/llama.yaml:")


def test_headers_give_the_exact_bytes_of_a_rank(tpspec: Callable[..., Any]) -> None:
    report = json.loads(tpspec("validate", STORIES, "--tp", "4", "--json").out)
    assert report["ok"] is True
    norms = 4 * (2 * 5 + 1) * 64
    total = STORIES.joinpath("model.safetensors").stat().st_size
    (at,) = report["sizes"]
    assert total - 8192 < 4 * at["weight_bytes"] - 3 * norms < total


def test_stories260k_is_refused_at_8_for_its_odd_ffn(tpspec: Callable[..., Any]) -> None:
    ran = tpspec("validate", STORIES, "--tp", "8")
    assert ran.status == 1
    named = [line for line in ran.out.splitlines() if "172 % 8 = 4" in line]
    assert [line.split()[0].rpartition(".")[2] for line in named] == ["gate_proj", "up_proj", "down_proj"]


def test_quiet_says_nothing_where_all_is_well(tpspec: Callable[..., Any]) -> None:
    assert tpspec("validate", STORIES, "--tp", "2,4", "--quiet") == type(tpspec("--version"))(0, "", "")
    assert "172 % 3" in tpspec("validate", STORIES, "--tp", "3", "--quiet").out


def test_names_are_checked_without_any_tp(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    config = json.loads((STORIES / "config.json").read_text()) | {"num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(STORIES / "model.safetensors")
    ran = tpspec("validate", tmp_path)
    assert ran.status == 1
    assert "model.layers.4.mlp.up_proj.weight" in ran.out
    assert "layer 4 is outside config.json's num_hidden_layers = 4 (0-3)" in ran.out


@pytest.mark.parametrize("sizes", ["0", "-2", "x", "2,,4", "9999999999"])
def test_a_bad_tp_is_bad_usage(tpspec: Callable[..., Any], sizes: str) -> None:
    ran = tpspec("validate", LLAMA_70B, "--tp", sizes)
    assert ran.status == 2
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "model_type"),
        ('{"model_type": "lama"}', "no spec knows model_type 'lama'"),
        ('{"model_type": 3}', "model_type"),
        ('{"model_type": "llama"', "config.json"),
        ('{"model_type": "llama", "model_type": "llama"}', "model_type"),
        ('["llama"]', "config.json"),
        ('{"model_type": "llama"}', "num_hidden_layers"),
    ],
)
def test_a_bad_config_is_one_clear_error(
    tpspec: Callable[..., Any], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = tpspec("validate", path, "--tp", "2")
    assert ran.status == 1
    assert message in ran.err + ran.out
    assert "Traceback" not in ran.err


def test_a_spec_of_one_s_own_is_used_and_named(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text(
        "spec: 1\narchitecture: mine\nextends: llama\naxes: {ffn: {units: intermediate_size // 7}}\n"
    )
    ran = tpspec("validate", LLAMA_70B, "--spec", spec, "--tp", "8")
    assert ran.status == 0
    assert str(spec) in ran.out
    spec.write_text("spec: 1\narchitecture: mine\nextend: llama\n")
    ran = tpspec("validate", LLAMA_70B, "--spec", spec)
    assert ran.status == 1
    assert "mine.yaml:3" in ran.err
    assert "did you mean 'extends'?" in ran.err


def test_show_gives_the_rows_of_one_rank(tpspec: Callable[..., Any]) -> None:
    out = tpspec("show", LLAMA_70B, "--tp", "16", "--rank", "9").out
    rows = {line.split()[0]: re.split(r"\s{2,}", line)[-1] for line in out.splitlines()}
    assert rows["model.layers.0-79.self_attn.q_proj"] == "[4608:5120]"
    assert rows["model.layers.0-79.self_attn.k_proj"] == "[512:640]"
    assert rows["model.layers.0-79.self_attn.o_proj"] == "[:, 4608:5120]"
    assert rows["model.norm"] == "whole"


def test_show_takes_a_glob_and_gives_json(tpspec: Callable[..., Any]) -> None:
    report = json.loads(tpspec("show", STORIES, "--tp", "4", "--module", "*.k_proj", "--json").out)
    (row,) = report["rows"]
    assert row["name"] == "model.layers.0-4.self_attn.k_proj.weight"
    assert row["tensors"] == 5
    assert row["shares"] == [[[8 * rank, 8]] for rank in range(4)]
    assert row["local_shapes"] == [[8, 64]] * 4


def test_show_refuses_what_is_not_there(tpspec: Callable[..., Any]) -> None:
    assert tpspec("show", STORIES, "--tp", "4", "--rank", "4").status == 2
    assert tpspec("show", STORIES, "--tp", "8").status == 1
    ran = tpspec("show", STORIES, "--tp", "4", "--module", "nothing")
    assert ran.status == 1
    assert "no module matches 'nothing'" in ran.err


def test_specs_are_listed_and_shown(tpspec: Callable[..., Any]) -> None:
    assert "llama" in tpspec("specs").out
    shown = tpspec("specs", "llama").out
    assert "model.layers.{layer}.self_attn.o_proj" in shown
    assert "specs/llama.yaml:" in shown
    assert {spec["name"] for spec in json.loads(tpspec("specs", "--json").out)} >= {"llama"}
    ran = tpspec("specs", "lama")
    assert ran.status == 1
    assert "did you mean 'llama'?" in ran.err


def test_the_schema_accepts_what_the_language_accepts(tpspec: Callable[..., Any]) -> None:
    schema = json.loads(tpspec("schema").out)
    tables = [schema, *schema["$defs"].values()]
    silent = [
        name for table in tables for name, key in table["properties"].items() if not key.get("description")
    ]
    assert silent == []
    assert schema["additionalProperties"] is False
    assert {"column", "row", "qkv-head", "merged", "vocab", "replicated"} <= schema["$defs"]["Rule"][
        "properties"
    ].keys()


def test_a_pre_sharded_directory_stands_for_its_source(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    assert tpspec("convert", STORIES, tmp_path / "tp4", "--tp", "4").status == 0
    shown = tpspec("show", tmp_path / "tp4", "--tp", "2").out
    assert shown == tpspec("show", STORIES, "--tp", "2").out
    assert "valid tp: 1, 2, 4" in tpspec("validate", tmp_path / "tp4").out


def test_an_unfinished_conversion_is_called_that(tpspec: Callable[..., Any], tmp_path: Path) -> None:
    assert tpspec("convert", STORIES, tmp_path / "tp4", "--tp", "4", "--ranks", "0").status == 0
    ran = tpspec("validate", tmp_path / "tp4")
    assert ran.status == 1
    assert "is an unfinished conversion" in ran.err
