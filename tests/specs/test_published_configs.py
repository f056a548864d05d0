"""Published configs, as their authors wrote them: which tp sizes work, and why others do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpspec.cache import cache_size
from tpspec.config import read_config
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"

TO_8, TO_16, TO_32, TO_64, TO_128 = (tuple(2**n for n in range(top + 1)) for top in (3, 4, 5, 6, 7))
VALID = {
    "Meta-Llama-3-70B": TO_64,
    "Meta-Llama-3-8B": TO_32,
    "Mistral-7B-v0.3": TO_32,
    "Mixtral-8x7B-v0.1": TO_32,
    "Qwen2.5-7B": (1, 2, 4),  # 28 heads, 4 KV heads, 18944 = 2^9 × 37
    "Qwen3-32B": TO_64,
    "Qwen3-30B-A3B": TO_32,
    "Phi-3-mini-4k-instruct": TO_32,
    "OLMo-2-1124-7B": TO_32,
    "gemma-2-9b": (1, 2, 4, 8, 16),
    "gpt2": (1, 2, 3, 4, 6, 12),
    "pythia-6.9b": TO_32,
    "bloom": (1, 2, 4, 7, 8, 14, 16, 28, 56, 112),
    "falcon-7b": (1, 71),
    "falcon-40b": TO_128,
    "falcon-40b-refinedweb": TO_128,
    "gpt-oss-20b": TO_64,  # this file says nothing of quantization
    "gpt-oss-120b": (1, 2),  # 2880 = 90 blocks of 32
    "DeepSeek-V3": (1, 2, 4, 8, 16),  # 2048 columns of an expert in blocks of 128
    "Nemotron-H-8B-Base-8K": TO_32,
    "DeepSeek-V2-Lite": (1, 2, 4, 8, 16),
    "Qwen1.5-MoE-A2.7B": (1, 2, 4, 8, 16),
    "GLM-4.5-Air": TO_32,
    "Llama-4-Scout-17B-16E": (1, 2, 4, 8),  # 40 heads
    "OLMoE-1B-7B-0924": (1, 2, 4, 8, 16),
    "MiniMax-M2": (1, 2, 4, 8, 16, 24, 48),
    "dbrx-base": (1, 2, 4, 8, 16, 24, 48),
    "ERNIE-4.5-300B-A47B": TO_64,
    "Falcon-H1-7B": (1, 2, 4, 6, 12),
    "GLM-4-9B-0414": TO_32,
    "GLM-4.6": (1, 2, 4, 8, 16, 24, 32, 48, 96),
    "Hunyuan-7B-Instruct": TO_32,
    "Jamba-v0.1": TO_32,
    "Kimi-K2-Instruct": TO_16,  # 64 heads, but 2048 columns of an expert in blocks of 128
    "Llama-3.1-405B": TO_128,
    "Llama-3.1-8B": TO_32,
    "Llama-3.2-1B": TO_32,
    "Llama-4-Maverick-17B-128E-Instruct": TO_8,  # 40 heads
    "MiniCPM3-4B": (1, 2, 4, 5, 8, 10, 20, 40),
    "Mistral-Nemo-Base-2407": TO_32,
    "Mistral-Small-24B-Base-2501": TO_32,
    "Mixtral-8x22B-v0.1": TO_16,  # 48 heads
    "OLMo-2-1124-13B": TO_8,  # 40 heads
    "Phi-3.5-MoE-instruct": TO_32,
    "Qwen2.5-0.5B": (1, 2),  # 14 heads, 2 KV heads
    "Qwen2.5-32B": TO_8,  # 40 heads
    "Qwen2.5-72B": TO_64,
    "Qwen3-235B-A22B": TO_64,
    "Qwen3-8B": TO_32,
    "Qwen3-Next-80B-A3B": TO_16,
    "SmolLM3-3B": TO_16,
    "Yi-34B": TO_8,  # 56 heads
    "bloom-7b1": TO_32,
    "c4ai-command-r-v01": TO_64,
    "c4ai-command-r7b-12-2024": TO_32,
    "falcon-180B": (1, 2, 4, 8, 232),  # 232 = 8 × 29 heads
    "falcon-mamba-7b": tuple(2**n for n in range(13)),  # 8192 channels
    "gemma-2b": TO_8,
    "gemma-3-27b-it": TO_32,
    "gpt-j-6b": TO_16,
    "granite-3.3-8b-instruct": TO_32,
    "granite-4.0-h-tiny": (1, 2, 4),  # 12 heads, 512 = 2^9 columns of an expert
    "jetmoe-8b": TO_16,
    "mpt-30b-chat": TO_64,
    "opt-350m": TO_16,
    "opt-66b": (1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36, 72),
    "phi-2": TO_32,
    "phi-4": (1, 2, 5, 10, 20, 40),  # 10 KV heads
    "stablelm-2-12b": TO_32,
    "starcoder2-15b": (1, 2, 4, 8, 12, 16, 24, 48),
}


def published(name: str) -> Resolution:
    config = read_config(CONFIGS / f"{name}.json")
    return resolve(choose_spec(config), config)


def broken(name: str, tp: int) -> dict[str, str]:
    """Module, layers in it as ranges → its tag, the size and the division."""
    found = published(name).misfits(tp)
    return {m.module: f"{m.tag}, {m.source} = {m.units}: {m.numbers}" for m in found}


@pytest.mark.parametrize("name", VALID)
def test_a_published_config_fits_its_spec_and_these_tp_sizes(name):
    resolution = published(name)
    assert resolution.findings == ()
    assert resolution.valid_tp == VALID[name]


@pytest.mark.parametrize("name", VALID)
def test_the_next_tp_size_after_the_valid_ones_names_a_module_and_a_remainder(name):
    tp = next(tp for tp in range(2, 8193) if tp not in VALID[name])
    found = published(name).misfits(tp)
    assert found
    for misfit in found:
        dividend, divisor = (int(number) for number in misfit.numbers.split(" = ")[0].split(" % "))
        assert misfit.numbers == f"{dividend} % {divisor} = {dividend % divisor}"
        assert dividend % divisor
        assert tp in (dividend, divisor)


def test_every_fixture_is_judged():
    assert {path.stem for path in CONFIGS.glob("*.json")} == {*VALID}


def test_kimi_k2_is_deepseek_v3_by_another_name_and_with_fewer_heads():
    kimi = published("Kimi-K2-Instruct")
    assert kimi.spec.name == "deepseek_v3"
    assert kimi.ranges["expert"] == range(384)
    assert broken("Kimi-K2-Instruct", 128)["layers.0-60.self_attn.q_b_proj"] == (
        "qkv-head q, num_attention_heads = 64: 64 % 128 = 64"
    )


def test_falcon_mamba_counts_the_channels_that_it_has_and_not_expand():
    assert published("falcon-mamba-7b").config["expand"] * 4096 == 65536
    assert set(broken("falcon-mamba-7b", 3).values()) == {
        f"{tag}, intermediate_size = 8192: 8192 % 3 = 2"
        for tag in ("merged channel+channel", "column channel", "row channel")
    }


def test_ernie_300b_has_no_shared_experts():
    shared = published("ERNIE-4.5-300B-A47B").shared
    assert not any("shared_experts" in str(item.placed.pattern) for item in shared)
    assert any("mlp.experts" in str(item.placed.pattern) for item in shared)


def test_jetmoe_is_read_in_the_spelling_of_its_first_release():
    assert broken("jetmoe-8b", 3)["model.layers.0-23.mlp.input_linear.weight"] == (
        "merged ffn+ffn, intermediate_size = 5632: 5632 % 3 = 1"
    )


def test_deepseek_v3_names_what_a_head_an_expert_or_an_fp8_block_forbids():
    three, blocks, many = (broken("DeepSeek-V3", tp) for tp in (3, 32, 256))
    assert three["layers.3-60.mlp.experts.0-255.down_proj"] == (
        "row moe, moe_intermediate_size = 2048: 2048 % 3 = 2"
    )
    assert "layers.0-2.mlp.down_proj" not in three  # 18432 = 2^11 × 9
    split = "column ffn, quantization block = 128: 576 % 128 = 64"
    assert blocks["layers.0-2.mlp.up_proj.weight_scale_inv"] == split
    assert "layers.0-60.self_attn.q_b_proj" not in blocks  # four heads of 192 are six blocks
    assert many["layers.0-60.self_attn.kv_b_proj"] == "qkv-head q, num_attention_heads = 128: 128 % 256 = 128"
    assert not any("kv_a_proj_with_mqa" in module for module in many)


def test_llama_3_70b_at_tp_6_names_every_kind_of_matrix_with_its_numbers():
    layer = "model.layers.0-79"
    head, kv = "num_attention_heads = 64: 64 % 6 = 4", "num_key_value_heads = 8: 8 % 6 = 2"
    ffn = "intermediate_size = 28672: 28672 % 6 = 4"
    assert broken("Meta-Llama-3-70B", 6) == {
        f"{layer}.self_attn.q_proj": f"qkv-head q, {head}",
        f"{layer}.self_attn.k_proj": f"qkv-head kv, {kv}",
        f"{layer}.self_attn.v_proj": f"qkv-head kv, {kv}",
        f"{layer}.self_attn.o_proj": f"row q, {head}",
        f"{layer}.mlp.gate_proj": f"column ffn, {ffn}",
        f"{layer}.mlp.up_proj": f"column ffn, {ffn}",
        f"{layer}.mlp.down_proj": f"row ffn, {ffn}",
    }


def test_falcon_7b_has_an_odd_number_of_heads():
    assert set(broken("falcon-7b", 2).values()) == {
        "qkv-head q+kv+kv, num_attention_heads = 71: 71 % 2 = 1",
        "row q, num_attention_heads = 71: 71 % 2 = 1",
    }


def test_nemotron_h_names_the_layers_of_each_kind():
    subjects = set(broken("Nemotron-H-8B-Base-8K", 64))
    assert "layers.7,18,29,40.mixer.q_proj" in subjects
    assert "layers.7,18,29,40.mixer.k_proj" not in subjects  # 64 is a multiple of 8


@pytest.mark.parametrize(
    ("name", "tp", "elements"),
    [
        ("Meta-Llama-3-70B", 1, 2 * 80 * 8 * 128),
        ("Meta-Llama-3-70B", 16, 2 * 80 * 128),
        ("DeepSeek-V3", 1, 61 * 576),
        ("DeepSeek-V3", 16, 61 * 576),
        ("bloom", 8, 2 * 70 * 14 * 128),
        ("falcon-7b", 71, 2 * 32 * 64),
    ],
)
def test_the_cache_of_a_token(name, tp, elements):
    resolution = published(name)
    assert cache_size(resolution.spec, resolution.config, tp).per_token == elements


def test_the_cache_of_windows_and_states():
    def cache(name, tp):
        resolution = published(name)
        return cache_size(resolution.spec, resolution.config, tp)

    gemma = cache("gemma-2-9b", 4)
    assert (gemma.per_token, gemma.windows) == (2 * 21 * 2 * 256, {4096: 2 * 21 * 2 * 256})
    assert cache("Phi-3-mini-4k-instruct", 1).windows == {2047: 2 * 32 * 32 * 96}
    assert cache("Qwen2.5-7B", 1).windows == {}
    hybrid = cache("Nemotron-H-8B-Base-8K", 8)
    assert hybrid.per_token == 4 * 2 * 128
    assert hybrid.per_sequence == 24 * (16 * 64 + 2 * 128) * 4
    assert hybrid.typed == {"float32": 24 * 16 * 64 * 128}


def test_a_grouped_falcon_without_its_kv_heads_does_not_become_multi_head():
    """(deepspeedai/DeepSpeed#4654) The key that counts KV heads was renamed."""
    config = read_config(CONFIGS / "falcon-40b.json")
    del config["num_kv_heads"]
    (finding,) = resolve(choose_spec(config), config).findings
    assert "config.json has no num_kv_heads" in finding.problem
