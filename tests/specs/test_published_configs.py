"""Published configs, as their authors wrote them: which tp sizes work, and why others do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpspec.cache import cache_size
from tpspec.config import read_config
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"

TO_32, TO_64, TO_128 = (tuple(2**n for n in range(top + 1)) for top in (5, 6, 7))
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
    "gpt-oss-20b": TO_64,
    "DeepSeek-V3": (1, 2, 4, 8, 16),  # 2048 columns of an expert in blocks of 128
    "Nemotron-H-8B-Base-8K": TO_32,
    "DeepSeek-V2-Lite": (1, 2, 4, 8, 16),
    "Qwen1.5-MoE-A2.7B": (1, 2, 4, 8, 16),
    "GLM-4.5-Air": TO_32,
    "Llama-4-Scout-17B-16E": (1, 2, 4, 8),  # 40 heads
    "OLMoE-1B-7B-0924": (1, 2, 4, 8, 16),
    "MiniMax-M2": (1, 2, 4, 8, 16, 24, 48),
    "dbrx-base": (1, 2, 4, 8, 16, 24, 48),
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


def test_every_fixture_is_judged():
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(VALID)


def test_deepseek_v3_names_what_a_head_an_expert_or_an_fp8_block_forbids():
    three, blocks, many = (broken("DeepSeek-V3", tp) for tp in (3, 32, 256))
    assert three["layers.3-60.mlp.experts.0-255.down_proj"] == (
        "row moe, moe_intermediate_size = 2048: 2048 % 3 = 2"
    )
    assert "layers.0-2.mlp.down_proj" not in three  # 18432 = 2^11 × 9
    assert blocks["layers.0-2.mlp.up_proj"] == "column ffn, quantization block = 128: 576 % 128 = 64"
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
    assert hybrid.per_sequence == 24 * (16 * 64 * (128 + 4) + 2 * 128 * 4)


def test_a_grouped_falcon_without_its_kv_heads_does_not_become_multi_head():
    """(deepspeedai/DeepSpeed#4654) The key that counts KV heads was renamed."""
    config = read_config(CONFIGS / "falcon-40b.json")
    del config["num_kv_heads"]
    (finding,) = resolve(choose_spec(config), config).findings
    assert "config.json has no num_kv_heads" in finding.problem
