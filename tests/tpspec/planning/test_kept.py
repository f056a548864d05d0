"""The cache of published models, in bytes worked out by hand from their configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpspec.config import read_config
from tpspec.language.registry import spec_named
from tpspec.planning.hardware import find_hardware
from tpspec.planning.plan import make_plan
from tpspec.planning.report import Cache
from tpspec.planning.sizes import AtSize, Basis, Question
from tpspec.resolution import Resolution
from tpspec.resolve import choose_spec, resolve

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
KIB = 1024


def published(name: str) -> Resolution:
    config = read_config(CONFIGS / f"{name}.json")
    return resolve(choose_spec(config), config)


def kept(name: str, tp: int, **question: Any) -> Cache:
    resolution = published(name)
    return AtSize(Basis(resolution, find_hardware("h100-sxm"), Question(**question)), tp).cache


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_kv_heads_are_shared_out_and_above_their_number_copied(tp, heads):
    """80 layers of keys and values, 128 wide, in bf16."""
    assert kept("Meta-Llama-3-70B", tp) == Cache(80 * 2 * heads * 128 * 2, (), 0)


@pytest.mark.parametrize("tp", [1, 2, 16])
def test_a_compressed_cache_is_whole_on_every_rank(tp):
    """61 layers of a latent of 512 and rotary keys of 64."""
    assert kept("DeepSeek-V3", tp) == Cache(61 * (512 + 64) * 2, (), 0)


@pytest.mark.parametrize(("tp", "heads"), [(1, 16), (8, 2), (32, 1)])
def test_five_of_six_layers_end_at_a_window(tp, heads):
    """Gemma 3: of 62 layers, 10 are global; the others keep 1024 tokens."""
    layer = 2 * heads * 128 * 2
    assert kept("gemma-3-27b-it", tp) == Cache(10 * layer, ((1024, 52 * layer),), 0)


def test_every_other_layer_ends_at_a_window():
    layer = 2 * 8 * 64 * 2
    assert kept("gpt-oss-20b", 1) == Cache(12 * layer, ((128, 12 * layer),), 0)
    layer = 2 * 8 * 256 * 2
    assert kept("gemma-2-9b", 1, kv_dtype="bfloat16") == Cache(21 * layer, ((4096, 21 * layer),), 0)


def test_states_of_mamba_are_kept_once_for_a_sequence_and_shared_out():
    """Jamba: 4 layers of attention in 32; 8192 channels with 16 states in float32 and 4 taps in bf16 each."""
    assert kept("Jamba-v0.1", 1) == Cache(4 * 2 * 8 * 128 * 2, (), 28 * 8192 * (16 * 4 + 4 * 2))
    assert kept("Jamba-v0.1", 8) == Cache(4 * 2 * 128 * 2, (), 28 * 1024 * (16 * 4 + 4 * 2))


def test_states_of_a_delta_net_are_a_matrix_for_each_value_head():
    """Qwen3-Next: 12 layers of attention in 48; 32 value heads, 16 key heads, all 128 wide, and 4 taps.

    Matrices are kept in float32, 72 MiB of them, taps in bf16, 2.25 MiB.
    """
    state, taps = 32 * 128 * 128, (32 * 128 + 2 * 16 * 128) * 4
    assert kept("Qwen3-Next-80B-A3B", 1) == Cache(12 * 2 * 2 * 256 * 2, (), 36 * (state * 4 + taps * 2))
    assert 36 * (state * 4 + taps * 2) == 74.25 * 2**20


def test_layers_that_use_the_keys_of_others_keep_none():
    """Gemma 3n E4B: 15 of its 35 layers; of the other 20, 4 are global."""
    config = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 15,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_size": 2048,
        "sliding_window": 512,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        "intermediate_size": [16384] * 35,
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25,
        "dtype": "bfloat16",
    }
    resolution = resolve(spec_named("gemma3n_text"), config)
    size = AtSize(Basis(resolution, find_hardware("h100-sxm"), Question()), 1)
    layer = 2 * 2 * 256 * 2
    assert size.cache == Cache(4 * layer, ((512, 16 * layer),), 0)


def test_a_cache_in_fp8_has_half_the_bytes_but_for_states():
    whole, half = kept("Jamba-v0.1", 1), kept("Jamba-v0.1", 1, kv_dtype="fp8")
    assert (half.per_token, half.per_sequence) == (whole.per_token // 2, whole.per_sequence)


def test_a_sequence_takes_its_state_and_no_more_of_a_window_than_it_has():
    cache = Cache(100, ((10, 7), (1000, 1)), 5000)
    assert cache.of_sequence(4) == 5000 + 4 * 108
    assert cache.of_sequence(500) == 5000 + 500 * 101 + 10 * 7


def test_tokens_are_held_in_sequences_of_the_context():
    """Windows make long sequences cheaper by the token, states short ones dearer."""
    gemma, jamba = published("gemma-3-27b-it"), published("Jamba-v0.1")
    device = find_hardware("h100-sxm")

    def tokens(resolution: Resolution, context: int) -> int:
        question = Question(sizes=(4,), context=context)
        (size,) = make_plan("", resolution, device, question, headers=False).sizes
        each = size.cache.of_sequence(context)
        assert size.exact.sequences == int(size.exact.pool / each)
        return size.exact.tokens

    assert tokens(gemma, 65536) > 4 * tokens(gemma, 1024)
    assert tokens(jamba, 65536) > 4 * tokens(jamba, 128)
