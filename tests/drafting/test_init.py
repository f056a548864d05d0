"""`tpspec init`: a draft loads, says what it guessed, and for plain architectures proves as it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tpspec.cli.app import app
from tpspec.drafting.document import draft
from tpspec.drafting.evidence import Evidence, Observation
from tpspec.drafting.relatives import Relative, nearest
from tpspec.errors import TpspecError
from tpspec.hub import locate
from tpspec.language.registry import spec_from_file
from tpspec.resolve import resolve
from tpspec.runtime.drafting import observe
from tpspec.runtime.model_code import register_code
from tpspec.runtime.prove import prove, tiny_subject

PLAIN = ["llama", "qwen2", "qwen3", "gpt_neox", "phi3", "mixtral", "starcoder2", "olmo2", "opt"]
EXAMPLE = Path(__file__).parents[2] / "docs" / "example" / "modeling_tern.py"
STORIES = Path(__file__).parents[1] / "models" / "stories260k"
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from tpspec.cli.app import main
main()
"""


@cache
def drafted(model_type: str) -> str:
    return draft(observe(model_type), model_type)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model_type", PLAIN)
def test_the_draft_of_a_plain_architecture_is_proved_unedited(model_type: str, tmp_path: Path) -> None:
    path = tmp_path / f"{model_type}.yaml"
    path.write_text(drafted(model_type))
    spec = spec_from_file(path)
    assert spec.extends == ()
    with tiny_subject(spec, path) as subject:
        assert [prove(subject, tp).failure for tp in (2, 8)] == ["", ""]


def test_an_order_that_shapes_do_not_tell_is_marked_as_a_guess() -> None:
    lines = drafted("phi3").splitlines()
    (fused,) = [i for i, line in enumerate(lines) if "self_attn.qkv_proj" in line]
    guess = "the order q, kv, kv; shapes do not tell (one KV group after another: interleaved: kv)"
    assert lines[fused - 1] == f"  # guessed: {guess}"


def test_sizes_are_told_apart_by_what_they_move_with() -> None:
    """OLMo-2 normalises all heads at once: cut, though as wide as the residual stream; Qwen3 each head."""
    olmo, qwen = drafted("olmo2"), drafted("qwen3")
    assert "self_attn.q_norm: {column: q, norm: {kind: rms}}" in " ".join(olmo.split())
    assert "self_attn.{k_norm,q_norm}: {replicated: head_dim}" in " ".join(qwen.split())


@pytest.mark.parametrize("width", ["d_inner", "ffn_hidden", "hidden_dim"])
def test_widths_and_norms_of_any_name_are_found(width: str, tmp_path: Path) -> None:
    """An MLP's width moves what leaves the residual stream; a norm within attention is not of its input."""
    code, path = tmp_path / f"modeling_{width}.py", tmp_path / f"{width}.yaml"
    names = {"ffn_dim": width, '"tern"': f'"tern_{width}"', "q_norm": "normalizer"}
    no_head_dim = {
        "        head_dim: int = 64,\n": "",
        "        self.head_dim = head_dim\n": "",
        "config.head_dim": "config.hidden_size // config.num_heads",
    }
    text = EXAMPLE.read_text()
    for old, new in (names | no_head_dim).items():
        text = text.replace(old, new)
    code.write_text(text)
    register_code(code)
    found = draft(observe(f"tern_{width}"), width)
    assert f"ffn: {{units: {width}}}" in found
    assert "{row: ffn, bias: false}" in found
    guess = "# guessed: a norm over the whole width, by its place blocks.{layer}.mixer.normalizer: "
    assert f"{guess}{{column: q, norm: {{kind: rms}}}}" in " ".join(found.split())
    path.write_text(found.replace("[q, kv, kv]", "[kv, q, kv]"))
    with tiny_subject(spec_from_file(path), path) as subject:
        assert prove(subject, 2).failure == ""


def test_a_matrix_of_unexplained_size_is_marked_where_it_stays_whole() -> None:
    shapes = {"blocks.0.mix.weight": (10, 12), "tokens.weight": (102, 64)}
    seen = Evidence("plum", (Observation({"hidden_size": 64, "vocab_size": 102}, shapes),))
    lines = draft(seen, "plum").splitlines()
    (whole,) = [i for i, line in enumerate(lines) if "blocks.{layer}.mix" in line]
    assert lines[whole - 1] == "  # guessed: replicated; nothing in the config that init knows moves it"


def test_defaults_are_those_of_the_config_class() -> None:
    text = drafted("mixtral")
    assert "  num_key_value_heads: num_key_value_heads or 8\n" in text
    assert "  num_key_value_heads: num_key_value_heads or num_attention_heads\n" in drafted("llama")


def test_without_torch_names_and_shapes_have_to_do(tmp_path: Path) -> None:
    out = tmp_path / "stories.yaml"
    command = [sys.executable, "-c", WITHOUT_TORCH, "init", str(STORIES), "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "guess" in result.stdout
    located = locate(str(STORIES))
    assert located.checkpoint
    resolution = resolve(spec_from_file(out), located.config, located.checkpoint.tensors)
    assert resolution.findings == ()
    assert resolution.valid_tp == (1, 2, 4)  # 172 = 4 × 43
    assert "q_proj" in out.read_text()


def test_the_nearest_relative_is_named(tmp_path: Path) -> None:
    path = tmp_path / "qwen2.yaml"
    path.write_text(drafted("qwen2"))
    assert nearest(path) == Relative("llama", alike=12, different=0)


def test_a_spec_that_differs_more_than_it_agrees_is_no_relative(tmp_path: Path) -> None:
    path = tmp_path / "far.yaml"
    path.write_text(drafted("qwen2").replace(".mlp.", ".feed.").replace("_layernorm", "_norm"))
    assert nearest(path) is None


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("mine")
    result = CliRunner().invoke(app, ["init", "llama", "--out", str(out)])
    assert isinstance(result.exception, TpspecError)
    assert "is there already" in str(result.exception)
    assert out.read_text() == "mine"


def test_a_small_model_that_does_not_run_is_an_error_of_its_tiny_values(tmp_path: Path) -> None:
    path = tmp_path / "deepseek_v2.yaml"
    path.write_text(drafted("deepseek_v2"))
    with pytest.raises(TpspecError, match=r"the unsharded model does not run: .*mlp\.gate"):
        tiny_subject(spec_from_file(path), path).__enter__()


@pytest.mark.parametrize("model_type", ["bamba", "falcon", "gpt_oss", "cpmant", "jetmoe"])
def test_the_draft_of_an_unusual_architecture_loads(model_type: str, tmp_path: Path) -> None:
    path = tmp_path / f"{model_type}.yaml"
    path.write_text(drafted(model_type))
    assert spec_from_file(path).rules


def test_an_unknown_type_is_an_error_with_a_remedy() -> None:
    with pytest.raises(TpspecError, match="has no model type 'plum'"):
        observe("plum")
