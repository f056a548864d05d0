"""Head counts: KV heads that are copied, counts that do not divide, widths of their own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, names
from tiny_decoders import deepseek, llama, llama_config, llama_shapes

from tpspec.language.registry import spec_named
from tpspec.resolve import resolve
from tpspec.scope import ConfigScope

ATTENTION = "model.layers.0.self_attn"


def valid_tp(**values):
    """The tp sizes that fit a Llama's config."""
    return resolve(spec_named("llama"), llama_config(**values)).valid_tp


def test_kv_heads_are_copied_to_neighbouring_ranks(tmp_path):
    """(huggingface/transformers#48307) 2 KV heads on 8 ranks loaded, then failed on a view."""
    model = llama(tmp_path / "model")
    ranks = model.cut(8)
    assert model.held(ranks, f"{ATTENTION}.q_proj.weight", names("q", 8), 2) == names("q", 8).split()
    for name in ("k_proj", "v_proj"):
        found = model.held(ranks, f"{ATTENTION}.{name}.weight", names("k", 2), 2)
        assert found == ["k0", "k0", "k0", "k0", "k1", "k1", "k1", "k1"]


def test_fewer_ranks_than_kv_heads_share_them_out_without_copies(tmp_path):
    """(aws-neuron/aws-neuron-sdk#1289) 8 KV heads on 2 ranks were turned into one per query head."""
    model = llama(tmp_path / "model", num_key_value_heads=8)
    ranks = model.cut(2)
    found = model.held(ranks, f"{ATTENTION}.k_proj.weight", names("k", 8), 2)
    assert found == ["k0 k1 k2 k3", "k4 k5 k6 k7"]
    cut = model.layout(2).tensors[f"{ATTENTION}.k_proj.weight"].cut
    assert cut.copies() == [(0, 16, 1)]


def test_kv_heads_that_do_not_divide_are_named(tmp_path):
    """(vllm-project/vllm#16021, vllm-project/vllm#5951, NVIDIA-NeMo/Automodel#799) 10 KV heads at tp 4."""
    heads = {"num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 40, "intermediate_size": 80}
    assert valid_tp(**heads) == (1, 2, 5, 10, 20, 40)
    model = llama(tmp_path / "model", **heads)
    said = model.refusal(4)
    assert f"{ATTENTION}.k_proj: qkv-head kv, num_key_value_heads = 10: 10 % 4 = 2" in said
    assert f"{ATTENTION}.v_proj: qkv-head kv, num_key_value_heads = 10: 10 % 4 = 2" in said
    assert "q_proj" not in said
    assert "valid tp: 1, 2, 5, 10, 20, 40" in said
    found = model.held(model.cut(20), f"{ATTENTION}.k_proj.weight", names("k", 10))
    assert found == [f"k{rank // 2}" for rank in range(20)]


def test_query_heads_that_do_not_divide_are_named_though_kv_heads_fit(tmp_path):
    """(vllm-project/vllm#772) Falcon-7B has 71 heads and one KV head; here 12 and 2, at tp 8."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2, "hidden_size": 24}
    assert valid_tp(**heads, intermediate_size=24) == (1, 2, 4, 6, 12)
    said = llama(tmp_path / "model", **heads).refusal(8)
    assert f"{ATTENTION}.q_proj: qkv-head q, num_attention_heads = 12: 12 % 8 = 4" in said
    assert f"{ATTENTION}.o_proj: row q, num_attention_heads = 12: 12 % 8 = 4" in said
    assert "k_proj" not in said


@pytest.mark.parametrize(("tp", "local"), [(1, (8, 2, 4)), (2, (4, 1, 4)), (4, (2, 1, 2)), (8, (1, 1, 1))])
def test_a_rank_is_told_its_own_head_counts(tmp_path, tp, local):
    """(deepspeedai/DeepSpeed#4016) The KV count stayed the whole model's; totals are kept all the same."""
    model = llama(tmp_path / "model")
    model.cut(tp)
    assert json.loads((model.out(tp) / "config.json").read_text())["num_key_value_heads"] == 2
    spec = spec_named("llama")
    scope = ConfigScope(spec, llama_config(), tp)
    told = {key: scope.evaluate(expression) for key, expression in spec.runtime.config.items()}
    groups = spec.runtime.attributes["model.layers.{layer}.self_attn"]["num_key_value_groups"]
    found = (told["num_attention_heads"], told["num_key_value_heads"], scope.evaluate(groups, {"layer": 0}))
    assert found == local


def test_head_dim_is_the_configs_where_it_gives_one(tmp_path):
    """(InternLM/lmdeploy#2761) Mistral-Nemo: hidden 80 and 4 heads, but head_dim 16, not 20."""
    heads = {"hidden_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = llama(tmp_path / "model", **heads, head_dim=16)
    assert model.tensors[f"{ATTENTION}.q_proj.weight"].shape == (64, 80)
    ranks = model.cut(2)
    found = model.held(ranks, f"{ATTENTION}.q_proj.weight", names("q", 4), 16)
    assert found == ["q0 q1", "q2 q3"]
    found = model.held(ranks, f"{ATTENTION}.o_proj.weight", names("q", 4), 16, dim=1)
    assert found == ["q0 q1", "q2 q3"]


def test_head_dim_that_the_config_lacks_is_not_guessed_past_the_shapes(tmp_path):
    """(InternLM/lmdeploy#2761) Without head_dim it is 80 // 4 = 20, and 64 rows are not 4 × 20."""
    heads = {"hidden_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
    shapes = llama_shapes({**llama_config(**heads), "head_dim": 16})
    said = checkpoint(tmp_path / "model", llama_config(**heads), shapes).refusal(2)
    assert f"{ATTENTION}.q_proj.weight: shape [64, 80] has 64 in dimension 0" in said
    assert "config.json makes it 80 (4 × 20 of qkv-head q)" in said


VISION = """
extends: llama
axes: {vision: {units: vision_config.num_attention_heads, width: vision_config.head_dim}}
modules:
"""
QKV, OUT = "vision_tower.blocks.0.qkv.weight", "vision_tower.blocks.0.proj.weight"


def with_vision(tmp_path, rules):
    """A Llama with one block of a vision tower of 5 heads of width 2."""
    vision = {"num_attention_heads": 5, "head_dim": 2, "depth": 1}
    config = {**llama_config(), "vision_config": vision}
    shapes = {**llama_shapes(config), QKV: (30, 10), OUT: (10, 10)}
    return checkpoint(tmp_path / "model", config, shapes, spec=VISION + rules)


def test_a_vision_tower_may_be_replicated(tmp_path):
    """(vllm-project/vllm#8097) 25 vision heads at tp 4: whole on each rank, while the text is cut."""
    model = with_vision(tmp_path, "  vision_tower.**: replicated\n")
    ranks = model.cut(4)
    for rank in ranks:
        np.testing.assert_array_equal(rank[QKV], model.tensors[QKV])
        assert rank[f"{ATTENTION}.q_proj.weight"].shape == (4, 16)


def test_vision_heads_that_do_not_divide_are_named(tmp_path):
    """(vllm-project/vllm#8097) Cut by heads, 5 of them at tp 4 are an error that names the tower's layer."""
    rules = """
  vision_tower.blocks.{block}.qkv: {qkv-head: [vision, vision, vision], in: 10}
  vision_tower.blocks.{block}.proj: {row: vision, out: 10}
ranges: {block: vision_config.depth}
"""
    model = with_vision(tmp_path, rules)
    said = model.refusal(4)
    numbers = "vision_config.num_attention_heads = 5: 5 % 4 = 1"
    assert f"vision_tower.blocks.0.qkv: qkv-head vision+vision+vision, {numbers}" in said
    assert f"vision_tower.blocks.0.proj: row vision, {numbers}" in said
    assert "model.layers" not in said


def test_latent_attention_is_cut_where_it_has_heads(tmp_path):
    """(vllm-project/tpu-inference#1847) MLA was taken for a model with one KV head, and copied whole."""
    model = deepseek(tmp_path / "model")
    ranks = model.cut(4)
    for part in ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"):
        name = f"{ATTENTION}.{part}.weight"
        for rank in ranks:
            np.testing.assert_array_equal(rank[name], model.tensors[name])
    heads = ["h0", "h1", "h2", "h3"]
    assert model.held(ranks, f"{ATTENTION}.q_b_proj.weight", " ".join(heads), 3 + 2) == heads
    assert model.held(ranks, f"{ATTENTION}.kv_b_proj.weight", " ".join(heads), 3 + 4) == heads
    assert model.held(ranks, f"{ATTENTION}.o_proj.weight", " ".join(heads), 4, dim=1) == heads
