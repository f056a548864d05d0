"""What an engine's file may say, and what is refused before a byte is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_checkpoints import RECORDS, write
from pydantic import ValidationError

from tpspec.checkpoint import open_checkpoint
from tpspec.cli.arguments import ENGINES
from tpspec.engines.engine import read_engine
from tpspec.engines.layout import EngineLayout
from tpspec.engines.resolve import engine_layout
from tpspec.engines.schema import EngineDocument
from tpspec.errors import TpspecError
from tpspec.language.registry import BUILT_IN
from tpspec.layout import Segment
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve

RECORD: dict[str, Any] = json.loads(RECORDS.read_text())


def made(
    folder: Path, name: str, tp: int, engine: str = "vllm", release: str | None = None, **config: object
) -> EngineLayout:
    described = RECORD["models"][name]
    folder.mkdir(exist_ok=True)
    return laid_out({**described, "config": described["config"] | config}, folder, tp, engine, release)


def laid_out(
    described: dict[str, Any], folder: Path, tp: int, engine: str = "vllm", release: str | None = None
) -> EngineLayout:
    resolution = resolved(write(described, folder / "source"))
    return engine_layout(resolution, read_engine(engine), tp, release)


def resolved(source: Path) -> Resolution:
    checkpoint = open_checkpoint(source)
    return resolve(choose_spec(checkpoint.config), checkpoint.config, checkpoint.tensors)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_of_the_command_line_has_a_sound_file(engine: str) -> None:
    assert read_engine(engine).engine == engine
    assert {path.stem for path in (BUILT_IN / "engines").glob("*.yaml")} == set(ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_family_of_an_engine_was_compared_with_it(engine: str) -> None:
    compared = {
        cls
        for name in RECORD["engines"][engine]["ranks"]
        for cls in RECORD["models"][name]["config"]["architectures"]
    }
    classes = {cls for family in read_engine(engine).families.values() for cls in family.classes}
    assert classes == compared


def test_a_model_class_that_the_engines_file_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TpspecError) as refused:
        made(tmp_path, "llama", 2, architectures=["LlamaForCausalML"])
    assert "LlamaForCausalML" in refused.value.message
    assert "near it: LlamaForCausalLM" in refused.value.message
    assert "GemmaForCausalLM" not in refused.value.message
    assert "let vLLM load the checkpoint itself" in refused.value.remedy


def test_a_quantization_that_the_engines_file_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TpspecError, match=r"what vLLM keeps of weights quantized as here \(mxfp4\) is not known"
    ):
        made(tmp_path, "llama", 2, quantization_config={"quant_method": "mxfp4"})


@pytest.mark.parametrize(
    ("name", "settings", "release", "problem"),
    [
        ("llama gptq", {"desc_act": True}, None, "vLLM does not run GPTQ's activation order"),
        ("llama gptq", {"modules_in_block_to_quantize": None}, None, "by the names in the files"),
        (
            "llama gptq",
            {},
            "0.31.0",
            r"what vLLM before 0\.32\.0 keeps of weights quantized as here \(gptq\)",
        ),
        ("llama awq", {}, "0.31.0", r"what vLLM before 0\.32\.0 keeps of weights quantized as here \(awq\)"),
    ],
)
def test_what_an_engine_does_not_load_of_a_quantization_is_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], release: str | None, problem: str
) -> None:
    quantization = RECORD["models"][name]["config"]["quantization_config"] | settings
    with pytest.raises(TpspecError, match=problem):
        made(tmp_path, name, 2, release=release, quantization_config=quantization)


def test_matrices_that_count_outputs_last_stand_side_by_side(tmp_path: Path) -> None:
    """Of 256 query rows and 64 of k and v each rank of two has half: 128 + 32 + 32 columns."""
    tensors = {tensor.name: tensor for tensor in made(tmp_path, "llama gptq", 2).tensors}
    qkv = tensors["model.layers.0.self_attn.qkv_proj.qweight"]
    assert qkv.shape(1) == (32, 192)
    assert qkv.pieces[0].layout.cut.shares[1] == (Segment(128, 128), Segment(288, 32), Segment(352, 32))
    assert not any(name.endswith("g_idx") for name in tensors)


def test_of_shapes_the_last_one_stays(tmp_path: Path) -> None:
    tensors = {tensor.name: tensor for tensor in made(tmp_path, "llama int4 group", 2).tensors}
    (piece,) = tensors["model.layers.0.self_attn.qkv_proj.weight_shape"].pieces
    assert piece.layout.name == "model.layers.0.self_attn.v_proj.weight_shape"


def test_biases_of_zeros_that_autogptq_adds_are_left_out(tmp_path: Path) -> None:
    described = json.loads(json.dumps(RECORD["models"]["llama gptq"]))
    plain = made(tmp_path / "plain", "llama gptq", 2)
    for name, (_, *shape) in list(described["tensors"].items()):
        if name.endswith(".scales"):
            described["tensors"][name.replace("scales", "bias")] = ["F16", shape[1]]
    names = {tensor.name for tensor in laid_out(described, tmp_path, 2).tensors}
    assert names == {tensor.name for tensor in plain.tensors}


def test_experts_of_which_only_fp8_is_known_are_refused_otherwise(tmp_path: Path) -> None:
    described = json.loads(json.dumps(RECORD["models"]["qwen3_moe compressed channel"]))
    described["config"]["quantization_config"]["format"] = "int-quantized"
    (group,) = described["config"]["quantization_config"]["config_groups"].values()
    group["weights"]["type"] = "int"
    for name, (dtype, *shape) in described["tensors"].items():
        described["tensors"][name] = ["I8" if dtype == "F8_E4M3" else dtype, *shape]
    with pytest.raises(TpspecError, match="how vLLM stacks experts that are quantized so is not known"):
        laid_out(described, tmp_path, 2)


@pytest.mark.parametrize(
    ("name", "named", "problem"),
    [
        ("llama", "Qwen2ForCausalLM", "q_proj.bias"),
        ("llama biases", "MistralForCausalLM", "q_proj"),
        ("llama", "Phi3ForCausalLM", "qkv_proj"),
    ],
)
def test_a_class_whose_tensors_the_checkpoint_has_not_is_refused(
    tmp_path: Path, name: str, named: str, problem: str
) -> None:
    with pytest.raises(TpspecError) as refused:
        made(tmp_path, name, 2, architectures=[named])
    assert f"names the class {named} and the model type llama" in refused.value.message
    assert problem in str(refused.value)
    assert refused.value.remedy == "name in `architectures` the class of a llama"


def test_a_class_of_another_model_type_may_have_the_same_tensors(tmp_path: Path) -> None:
    as_mistral = made(tmp_path / "mistral", "llama", 2, architectures=["MistralForCausalLM"])
    assert as_mistral.tensors == made(tmp_path / "llama", "llama", 2).tensors


def test_a_config_without_architectures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TpspecError, match="names no model class") as refused:
        made(tmp_path, "llama", 2, architectures=None)
    assert "name it in `architectures`" in refused.value.remedy


def test_the_class_is_the_whole_model_s_and_not_that_of_its_text_part(tmp_path: Path) -> None:
    """Configs of vision models name both; the text part alone is no such model."""
    nested = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    with pytest.raises(TpspecError, match="names LlavaForConditionalGeneration, and"):
        made(tmp_path, "llama", 2, architectures=["LlavaForConditionalGeneration"], text_config=nested)


@pytest.mark.parametrize(
    ("engine", "named", "why"),
    [
        ("sglang", "BloomForCausalLM", "SGLang has no such model"),
        ("vllm", "PhiForCausalLM", "the head's bias"),
    ],
)
def test_a_class_that_is_left_out_is_refused_with_the_reason(
    tmp_path: Path, engine: str, named: str, why: str
) -> None:
    with pytest.raises(TpspecError, match=why) as refused:
        made(tmp_path, "llama", 2, engine, architectures=[named])
    assert "add the class" not in refused.value.remedy


@pytest.mark.parametrize("engine", ENGINES)
def test_no_class_is_both_left_out_and_in_a_family(engine: str) -> None:
    document = read_engine(engine)
    assert not document.left_out.keys() & {cls for f in document.families.values() for cls in f.classes}


def test_a_user_s_own_file_of_an_engine_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engines").mkdir()
    text = (BUILT_IN / "engines" / "vllm.yaml").read_text()
    (tmp_path / "engines" / "vllm.yaml").write_text(
        text.replace("GraniteForCausalLM: granite", "MyLlama: llama")
    )
    monkeypatch.setenv("TPSPEC_PATH", str(tmp_path))
    mine = made(tmp_path, "llama", 2, architectures=["MyLlama"])
    monkeypatch.delenv("TPSPEC_PATH")
    assert mine.tensors == made(tmp_path / "again", "llama", 2).tensors
    with pytest.raises(TpspecError, match="names MyLlama") as refused:
        made(tmp_path / "without", "llama", 2, architectures=["MyLlama"])
    assert "add the class to a copy of specs/engines/vllm.yaml in engines/ of a folder of TPSPEC_PATH" in (
        refused.value.remedy
    )


@pytest.mark.parametrize("said", [7, "LlamaForCausalLM", [{"a": 1}], {"LlamaForCausalLM": 1}])
def test_architectures_that_are_no_list_of_names_are_refused(tmp_path: Path, said: object) -> None:
    with pytest.raises(TpspecError) as refused:
        made(tmp_path, "llama", 2, architectures=said)
    (finding,) = refused.value.findings
    assert finding.subject == "config.json"
    assert f"`architectures` is {said!r}, not a list" in finding.problem


@pytest.mark.parametrize("config", [{}, {"quantization_config": {"quant_method": "fp8"}}])
def test_a_tp_that_does_not_divide_the_heads_says_that_padding_helps(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    with pytest.raises(TpspecError) as refused:
        made(tmp_path, "llama", 16, **config)
    assert "num_attention_heads = 8: 8 % 16 = 8" in str(refused.value)
    padding = "pad it first: tpspec pad SRC PADDED --tp 16, then export PADDED"
    assert refused.value.remedy == f"valid tp: 1, 2, 4, 8   or {padding}"


def test_padding_is_no_remedy_where_the_vocabulary_stays_undivided(tmp_path: Path) -> None:
    with pytest.raises(TpspecError) as refused:
        made(tmp_path, "llama", 3)
    assert refused.value.remedy == "valid tp: 1, 2, 4, 8   (tpspec pad leaves a vocabulary as it is)"
    assert "1000 rows are filled up to 1024" in str(refused.value)


def test_a_vocabulary_that_does_not_divide_once_it_is_filled_up_is_refused(tmp_path: Path) -> None:
    described = RECORD["models"]["opt"]
    config = described["config"] | {"num_attention_heads": 12, "hidden_size": 768, "ffn_dim": 768}
    config |= {"word_embed_proj_dim": 768}
    shapes = {
        name: [dtype, *(768 if size in (256, 448) else size for size in shape)]
        for name, (dtype, *shape) in described["tensors"].items()
    }
    with pytest.raises(TpspecError, match="vLLM cannot load this checkpoint at tp=12") as refused:
        laid_out({"config": config, "tensors": shapes}, tmp_path, 12)
    assert "1000 rows are filled up to 1024, a multiple of 64: 1024 % 12 = 4" in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "name", "tp", "config", "at", "condition"),
    [
        ("vllm", "gpt_oss", 8, {"num_key_value_heads": 4}, " at tp=8", "num_key_value_heads % tp == 0"),
        ("vllm", "qwen3_moe", 8, {"num_experts": 4}, " at tp=8", "tp <= num_experts"),
        ("sglang", "llama all biases", 2, {}, "", "not mlp_bias"),
        ("sglang", "qwen2_moe dense first", 2, {}, "", "not mlp_only_layers"),
    ],
)
def test_what_an_engine_refuses_is_refused(
    tmp_path: Path, engine: str, name: str, tp: int, config: dict[str, object], at: str, condition: str
) -> None:
    described = json.loads(json.dumps(RECORD["models"][name]))
    described["config"] |= config
    for tensor, (_, *shape) in list(described["tensors"].items()):
        if config.get("num_key_value_heads") and any(part in tensor for part in ("k_proj", "v_proj")):
            described["tensors"][tensor][1] = shape[0] // 2
        if config.get("num_experts") and any(f".experts.{n}." in tensor for n in range(4, 8)):
            del described["tensors"][tensor]
        elif config.get("num_experts") and tensor.endswith("mlp.gate.weight"):
            described["tensors"][tensor][1] = 4
    with pytest.raises(TpspecError) as refused:
        laid_out(described, tmp_path, tp, engine)
    remedy = refused.value.remedy
    assert f"refuses this model{at}: `{condition}" in refused.value.message
    assert "tp = " in refused.value.message or "mlp_bias = True" in refused.value.message
    assert remedy == "no tp helps: serve it with another engine" if not at else remedy == "valid tp: 1, 2, 4"


def test_matrices_of_two_types_make_no_fused_one(tmp_path: Path) -> None:
    described = json.loads(json.dumps(RECORD["models"]["llama"]))
    described["tensors"]["model.layers.1.self_attn.k_proj.weight"][0] = "F16"
    with pytest.raises(TpspecError) as refused:
        laid_out(described, tmp_path, 2)
    assert "model.layers.1.self_attn.qkv_proj.weight: is made of" in str(refused.value)
    assert "in BF16 and model.layers.1.self_attn.k_proj.weight in F16" in str(refused.value)


def test_before_the_experts_had_a_module_of_their_own_they_had_other_names(tmp_path: Path) -> None:
    now = {tensor.name for tensor in made(tmp_path / "now", "qwen3_moe", 2).tensors}
    then = {tensor.name for tensor in made(tmp_path / "then", "qwen3_moe", 2, release="0.23.0").tensors}
    experts = "model.layers.1.mlp.experts"
    assert now - then >= {f"{experts}.routed_experts.w13_weight", f"{experts}.gate.weight"}
    assert then - now >= {f"{experts}.w13_weight", f"{experts}.runner.gate.weight"}
    same = {tensor.name for tensor in made(tmp_path / "same", "qwen3_moe", 2, release="0.24.0").tensors}
    assert same == now


@pytest.mark.parametrize(
    ("name", "release", "problem"),
    [
        ("llama", "0.10.0", "from 0.22.0 on, not in 0.10.0"),
        ("llama", "newest", "'newest' is not a release of vLLM"),
    ],
)
def test_a_release_whose_names_are_not_known_is_refused(
    tmp_path: Path, name: str, release: str, problem: str
) -> None:
    with pytest.raises(TpspecError, match=problem):
        made(tmp_path, name, 2, release=release)


@pytest.mark.parametrize(
    ("name", "release", "then", "now"),
    [
        (
            "gpt_neox",
            "0.31.0",
            "gpt_neox.layers.1.attention.attn._k_scale",
            "model.layers.1.attention.attn._k_scale",
        ),
        ("gpt_neox", "0.31.0", "embed_out.weight", "lm_head.weight"),
        ("gemma", "0.28.0", "model.embed_tokens.weight", "lm_head.weight"),
        ("smollm3", "0.29.0", None, "model.layers.1.self_attn.attn._k_scale"),
        ("smollm3", "0.24.0", "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_up_proj.weight"),
        ("olmo3", "0.29.0", None, "model.layers.1.self_attn.attn._k_scale"),
        (
            "qwen2_moe",
            "0.23.0",
            "model.layers.1.mlp.shared_expert.expert_gate.weight",
            "model.layers.1.mlp.experts._shared_experts._layer.expert_gate.weight",
        ),
        (
            "deepseek_v3",
            "0.23.0",
            "model.layers.1.mlp.experts.e_score_correction_bias",
            "model.layers.1.mlp.experts.gate.e_score_correction_bias",
        ),
    ],
)
def test_a_release_has_the_tensors_that_it_had(
    tmp_path: Path, name: str, release: str, then: str | None, now: str
) -> None:
    of_today = {tensor.name for tensor in made(tmp_path / "now", name, 2).tensors}
    of_then = {tensor.name for tensor in made(tmp_path / "then", name, 2, release=release).tensors}
    assert now in of_today - of_then
    assert then is None or then in of_then - of_today


def test_the_first_release_has_otherwise_what_was_found_to_be_otherwise(tmp_path: Path) -> None:
    engine = read_engine("vllm")
    noted = RECORD["earlier"][f"vllm {engine.since}"]
    for name, of_model in noted["outcomes"].items():
        resolution = resolved(write(RECORD["models"][name], tmp_path / name))
        if of_model["2"].startswith("refused"):
            with pytest.raises(TpspecError, match="refuses this model"):
                engine_layout(resolution, engine, 2, engine.since)
        elif of_model["2"].endswith("equal"):
            then, now = (engine_layout(resolution, engine, 2, release) for release in (engine.since, None))
            assert (then.tensors != now.tensors) == (name in noted["ranks"]), name


def test_a_family_that_was_otherwise_stays_so_in_those_before(tmp_path: Path) -> None:
    attention = "model.layers.1.self_attn.attn._k_scale"
    had = {
        release: attention
        in {tensor.name for tensor in made(tmp_path / release, "olmo3", 2, release=release).tensors}
        for release in ("0.22.0", "0.28.0", "0.29.0", "0.30.0")
    }
    assert had == {"0.22.0": True, "0.28.0": True, "0.29.0": False, "0.30.0": True}


def test_a_model_that_a_release_did_not_load_is_refused_for_it(tmp_path: Path) -> None:
    with pytest.raises(TpspecError, match="num_key_value_heads"):
        made(tmp_path / "grouped", "olmo", 2, release="0.25.0")
    assert made(tmp_path / "later", "olmo", 2, release="0.26.0").tensors
    assert made(tmp_path / "own", "olmo mha", 2, release="0.25.0").tensors


@pytest.mark.parametrize(
    ("family", "changed", "problem"),
    [
        ("llama", {"classes": {"LlamaForCausalLM": "llama"}}, "llama before 9.0.0 names classes"),
        ("llama", {"extends": "lama"}, "llama before 9.0.0 extends lama, which is not here"),
        ("lama", {}, "lama was otherwise before 9.0.0, but is not here"),
    ],
)
def test_a_change_of_what_is_not_here_is_refused(
    family: str, changed: dict[str, object], problem: str
) -> None:
    families = {"llama": {"classes": {"LlamaForCausalLM": "llama"}}}
    version = {"before": "9.0.0", "families": {family: changed}}
    said = {"engine": "vllm", "title": "vLLM", "compared_with": "9.0.0", "serve": "vllm", "vocabulary": 64}
    with pytest.raises(ValidationError, match=problem):
        EngineDocument.model_validate({**said, "families": families, "versions": [version]})


def test_an_engine_of_which_one_release_is_known_has_no_earlier_names(tmp_path: Path) -> None:
    with pytest.raises(TpspecError, match=r"what SGLang calls tensors from 0\.5\.23 on, not in 0\.4\.0"):
        made(tmp_path, "llama", 2, "sglang", release="0.4.0")
