"""What config.json says of quantization: which format, which modules, in which way; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tpspec.config import with_quantization
from tpspec.errors import TpspecError
from tpspec.quantization import Quantization, detect_format
from tpspec.stored import PLAIN, Stored

LAYER = "model.layers.3"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


def detected(**settings: Any) -> Quantization:
    return detect_format({"quantization_config": settings})


def shapes(stored: Stored, out: int = 256, into: int = 512) -> dict[str, tuple[int, ...]]:
    """The stored shape of each tensor that a module needs."""
    sizes = {"out": out, "in": into}
    return {
        name: tuple(
            dimension.stored(sizes.get(dimension.name) or int(dimension.name))
            for dimension in stored.parameters[name].dimensions
        )
        for name in stored.needed
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (GPTQ, {"qweight": (64, 256), "qzeros": (4, 32), "scales": (4, 256)}),
        (
            {**GPTQ, "bits": 8, "group_size": -1},
            {"qweight": (128, 256), "qzeros": (1, 64), "scales": (1, 256)},
        ),
        ({**GPTQ, "bits": 3}, {"qweight": (48, 256), "qzeros": (4, 24), "scales": (4, 256)}),
        (
            {**GPTQ, "desc_act": True},
            {"qweight": (64, 256), "qzeros": (4, 32), "scales": (4, 256), "g_idx": (512,)},
        ),
        (AWQ, {"qweight": (512, 32), "qzeros": (4, 32), "scales": (4, 256)}),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            {"weight": (256, 512), "weight_scale_inv": (2, 4)},
        ),
        ({"quant_method": "fp8"}, {"weight": (256, 512), "weight_scale": ()}),
        ({"quant_method": "fbgemm_fp8"}, {"weight": (256, 512), "weight_scale": (256, 1)}),
        (
            {**PACKED, "config_groups": {"group_0": {"weights": INT4}}},
            {"weight_packed": (256, 64), "weight_scale": (256, 4)},
        ),
        (
            {**PACKED, "config_groups": {"group_0": {"weights": {**INT4, "symmetric": False}}}},
            {"weight_packed": (256, 64), "weight_scale": (256, 4), "weight_zero_point": (32, 4)},
        ),
        (
            {**PACKED, "format": "float-quantized", "config_groups": {"group_0": {"weights": FP8}}},
            {"weight": (256, 512), "weight_scale": (256, 1)},
        ),
        ({"quant_method": "mxfp4"}, {"weight_blocks": (256, 16, 16), "weight_scales": (256, 16)}),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {"weight": (256, 256), "weight_scale": (256, 32), "weight_scale_2": ()},
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            {"weight": (256, 512), "SCB": (256,)},
        ),
        (
            {
                "quant_method": "auto-round",
                "packing_format": "auto_round:auto_gptq",
                "bits": 4,
                "group_size": 64,
            },
            {"qweight": (64, 256), "qzeros": (8, 32), "scales": (8, 256)},
        ),
    ],
    ids=lambda value: value.get("quant_method", "") if isinstance(value, dict) else "",
)
def test_a_format_gives_the_tensors_of_a_module_and_their_shapes(settings: dict[str, Any], expected: Any):
    assert shapes(detected(**settings).usual) == expected


def test_the_older_key_of_compressed_tensors_is_read():
    said = {
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
    }
    assert detect_format({"compression_config": said}).name == "compressed-tensors"


def quantized(quantization: Quantization, *modules: str) -> list[str]:
    """Those of some modules that are not stored plainly."""
    return [name for name in modules if quantization.of((name,)) is not PLAIN]


ALL = tuple(f"{LAYER}.{name}" for name in ("self_attn.q_proj", "mlp.gate", "mlp.gate_proj", "mlp.down_proj"))


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "mlp.gate"]}, {"mlp.gate"}),
        ({"quant_method": "fp8", "modules_to_not_convert": [f"{LAYER}.mlp.gate"]}, {"mlp.gate"}),
        ({"quant_method": "fp8", "ignored_layers": [f"{LAYER}.self_attn.q_proj"]}, {"self_attn.q_proj"}),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
            {"self_attn.q_proj"},
        ),
        ({**AWQ, "modules_to_not_convert": ["self_attn"]}, {"self_attn.q_proj"}),
        ({**GPTQ, "dynamic": {r"-:.*\.mlp\.(gate|down_proj)$": {}}}, {"mlp.gate", "mlp.down_proj"}),
        (
            {**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.down_proj"]]},
            {"mlp.gate", "mlp.gate_proj"},
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": [f"{LAYER}.self_attn*"]},
            {"self_attn.q_proj"},
        ),
        (
            {
                **PACKED,
                "ignore": ["lm_head", r"re:.*mlp\.gate$"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
            },
            {"mlp.gate"},
        ),
        (
            {**PACKED, "config_groups": {"group_0": {"targets": [r"re:.*\.mlp\..*_proj$"], "weights": INT4}}},
            {"self_attn.q_proj", "mlp.gate"},
        ),
    ],
)
def test_modules_that_the_settings_name_stay_plain(settings: dict[str, Any], plain: set[str]):
    found = quantized(detected(**settings), *ALL)
    assert {name.removeprefix(f"{LAYER}.") for name in {*ALL} - {*found}} == plain


def test_modules_may_have_other_bits_and_groups_than_the_rest():
    rules = {r".*down_proj": {"bits": 8, "group_size": 64}, r"-:.*q_proj": {}}
    gptq = detected(**GPTQ, dynamic=rules)
    assert shapes(gptq.of((f"{LAYER}.mlp.down_proj",)))["qweight"] == (128, 256)
    assert shapes(gptq.of((f"{LAYER}.mlp.gate_proj",)))["qweight"] == (64, 256)
    assert gptq.of((f"{LAYER}.self_attn.q_proj",)) is PLAIN
    assert gptq.by_name


def test_groups_of_compressed_tensors_may_be_stored_in_different_ways_and_the_closest_name_decides():
    groups = {
        "group_0": {"targets": ["Linear"], "weights": INT4},
        "group_1": {"targets": [r"re:.*self_attn.*"], "format": "float-quantized", "weights": FP8},
        "group_2": {"targets": [f"{LAYER}.self_attn.q_proj"], "weights": {**INT4, "num_bits": 8}},
    }
    mixed = detected(**PACKED, config_groups=groups)
    assert shapes(mixed.of((f"{LAYER}.mlp.up_proj",)))["weight_packed"] == (256, 64)
    assert shapes(mixed.of((f"{LAYER}.self_attn.k_proj",))) == {
        "weight": (256, 512),
        "weight_scale": (256, 1),
    }
    assert shapes(mixed.of((f"{LAYER}.self_attn.q_proj",)))["weight_packed"] == (256, 128)


def test_layers_of_mixed_precision_may_be_named_by_what_holds_them():
    layers = {
        f"{LAYER}.self_attn.q_proj": {"quant_algo": "FP8"},
        f"{LAYER}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
    }
    mixed = detected(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert "weight_scale_2" in mixed.of((f"{LAYER}.mlp.experts.7.up_proj",)).parameters
    assert shapes(mixed.of((f"{LAYER}.self_attn.q_proj",)))["weight_scale"] == ()
    assert mixed.of((f"{LAYER}.mlp.gate",)) is PLAIN


@pytest.mark.parametrize(
    ("settings", "quantizes"),
    [(GPTQ, False), ({**GPTQ, "lm_head": True}, True), ({"quant_method": "fp8"}, False)],
)
def test_the_head_is_quantized_where_the_settings_say_so(settings: dict[str, Any], quantizes: bool):
    assert (detected(**settings).of(("lm_head",), head=True) is not PLAIN) == quantizes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "bitsandbytes stores 4-bit weights as one run of blocks across rows",
        ),
        ({**AWQ, "version": "gemv"}, "of AWQ's layouts only gemm is described"),
        ({**AWQ, "bits": 8}, "AWQ packs 4-bit integers"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "in a kernel's own layout cannot be cut"),
        ({**PACKED, "format": "marlin-24", "config_groups": {"a": {"weights": INT4}}}, "format 'marlin-24'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ'"),
        ({"quant_method": "hqq"}, "no format describes checkpoints quantized by 'hqq'"),
        (
            {"quant_method": "auto-round", "packing_format": "auto_round"},
            "quantized by 'auto-round with packing_format auto_round'",
        ),
        ({**GPTQ, "group_size": "many"}, "'many' is not a positive count"),
        ({**GPTQ, "bits": 0}, "bits = 0 is not a positive count"),
        ({**GPTQ, "dynamic": {"(a+)+$": {}}}, "is too involved to be tried"),
        ({**GPTQ, "dynamic": {"(": {}}}, "is no regular expression"),
        ({**GPTQ, "dynamic": ["a"]}, "dynamic is not an object"),
        ({"quant_method": "fp8", "modules_to_not_convert": [1]}, "is not a list of module names"),
        ({**PACKED, "config_groups": {"group_0": []}}, "config_groups.group_0 is not an object"),
        ({**GPTQ, "bits": "4"}, "bits = '4' is not a positive count"),
        ({**GPTQ, "group_size": None}, "does not say group_size"),
        ({**GPTQ, "is_marlin_format": True}, "in a kernel's own layout cannot be cut"),
        ({**GPTQ, "desc_act": "true"}, "desc_act = 'true' is not true or false"),
        ({"quant_method": "awq", "bits": 4}, "config.json has no group_size or q_group_size"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "= 128 is not a list of two positive counts"),
        ({"quant_method": "fp8", "weight_block_size": [16, 16, 16]}, "is not a list of two positive counts"),
        ({"quant_method": "bitsandbytes"}, "says neither 8 bits nor 4"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": "yes"},
            "load_in_4bit = 'yes' is not true or false",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 0}, "group_size = 0 is not"),
        (PACKED, "names no groups of modules"),
        ({**PACKED, "config_groups": {}}, "names no groups of modules"),
        ({**PACKED, "config_groups": {"a": {"targets": None, "weights": INT4}}}, "a.targets is null"),
        ({**PACKED, "config_groups": {"a": {"weights": {**INT4, "strategy": "foo"}}}}, "have a strategy"),
        ({**PACKED, "config_groups": {"a": {"weights": {**INT4, "actorder": "foo"}}}}, "have an actorder"),
        (
            {**PACKED, "config_groups": {"a": {"weights": {**INT4, "symmetric": "false"}}}},
            "symmetric = 'false'",
        ),
        (
            {
                **PACKED,
                "config_groups": {"a": {"weights": INT4}},
                "sparsity_config": {"format": "sparse-24-bitmask"},
            },
            "sparse weights",
        ),
        (
            {
                **PACKED,
                "config_groups": {"a": {"weights": INT4}},
                "kv_cache_scheme": {"strategy": "attn_head"},
            },
            "other than one scale for all heads",
        ),
    ],
)
def test_what_cannot_be_cut_or_read_is_refused_with_the_reason_and_what_to_do(settings: Any, said: str):
    with pytest.raises(TpspecError) as refusal:
        detected(**settings).of(("model.layers.0.mlp.up_proj",))
    assert said in str(refusal.value)


def test_a_refusal_of_bitsandbytes_says_what_can_be_done():
    with pytest.raises(TpspecError) as refusal:
        detected(quant_method="bitsandbytes", load_in_4bit=True)
    assert "convert the unquantized checkpoint" in str(refusal.value.remedy)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}, "producer": {}}, "modelopt"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "awq"),
    ],
)
def test_older_checkpoints_say_it_in_a_file_of_its_own(name: str, content: dict[str, Any], expected: str):
    config = with_quantization({}, ["config.json", name], lambda _: json.dumps(content).encode())
    assert detect_format(config).name == expected
    said = {"quantization_config": {"quant_method": "fp8"}}
    assert with_quantization(said, [name], lambda _: b"not read") is said


def test_a_file_that_says_nothing_of_quantization_is_an_error():
    with pytest.raises(TpspecError, match="has no object called quantization"):
        with_quantization({}, ["hf_quant_config.json"], lambda _: b"{}")
