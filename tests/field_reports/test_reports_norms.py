"""Norms within attention, sinks and ALiBi: what belongs to heads goes where the heads go."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, names
from tiny_decoders import llama, llama_config, llama_shapes

from tpspec.axes import shares
from tpspec.language.registry import spec_named
from tpspec.scope import ConfigScope

Q_NORM = "model.layers.0.self_attn.q_norm.weight"
K_NORM = "model.layers.0.self_attn.k_norm.weight"


def with_norms(tmp_path, rules, shape_q, shape_k):
    """A Llama of 8 heads and 2 KV heads of width 2 with norms of these shapes under these rules."""
    config = llama_config()
    shapes = {**llama_shapes(config), Q_NORM: shape_q, K_NORM: shape_k}
    spec = "extends: llama\nmodules:\n"
    spec += "".join(f"  model.layers.{{layer}}.self_attn.{name}: {rule}\n" for name, rule in rules.items())
    return checkpoint(tmp_path / "model", config, shapes, spec=spec)


@pytest.mark.parametrize("rule", ["replicated", "{replicated: head_dim}"])
def test_a_norm_of_one_head_is_whole_on_every_rank(tmp_path, rule):
    """(aws-neuron/neuronx-distributed#28) A norm within each head needs no collective, and no cut."""
    model = with_norms(tmp_path, {"{q_norm,k_norm}": rule}, (2,), (2,))
    for rank in model.cut(4):
        np.testing.assert_array_equal(rank[Q_NORM], model.tensors[Q_NORM])
        np.testing.assert_array_equal(rank[K_NORM], model.tensors[K_NORM])


def test_a_norm_across_heads_tagged_replicated_is_an_error(tmp_path):
    """(aws-neuron/neuronx-distributed#28) 16 elements are all heads', and the queries around are cut."""
    said = with_norms(tmp_path, {"{q_norm,k_norm}": "replicated"}, (16,), (4,)).refusal(2)
    assert "self_attn.q_norm: replicated, but its 16 elements are the 8 × 2 of axis 'q'" in said
    assert "self_attn.k_norm: replicated, but its 4 elements are the 2 × 2 of axis 'kv'" in said


def test_a_norm_across_heads_said_to_be_of_one_head_is_an_error(tmp_path):
    """(aws-neuron/neuronx-distributed#28) `replicated: head_dim` says 2, the checkpoint has 16."""
    rules = {"{q_norm,k_norm}": "{replicated: head_dim}"}
    said = with_norms(tmp_path, rules, (16,), (2,)).refusal(2)
    assert "self_attn.q_norm.weight: shape [16], but the spec says [2] (head_dim)" in said


def test_a_norm_across_heads_is_cut_with_its_heads(tmp_path):
    """(aws-neuron/neuronx-distributed#28) Its statistics are summed, and its weight is cut."""
    rules = {
        name: f"{{column: {axis}, norm: {{kind: rms}}}}" for name, axis in (("q_norm", "q"), ("k_norm", "kv"))
    }
    model = with_norms(tmp_path, rules, (16,), (4,))
    ranks = model.cut(4)
    assert model.held(ranks, Q_NORM, names("q", 8), 2) == ["q0 q1", "q2 q3", "q4 q5", "q6 q7"]
    assert model.held(ranks, K_NORM, names("k", 2), 2) == ["k0", "k0", "k1", "k1"]


def test_norms_that_the_spec_lacks_are_all_named(tmp_path):
    """(arcee-ai/mergekit#674) An architecture file without Cohere's norms lost them without a word."""
    model = llama(tmp_path / "model", {Q_NORM: (8, 2), K_NORM: (2, 2)})
    said = model.refusal(2)
    assert f"{Q_NORM}: no rule of specs/llama.yaml names this tensor, shape [8, 2]" in said
    assert f"{K_NORM}: no rule of specs/llama.yaml names this tensor, shape [2, 2]" in said


def test_norms_with_a_row_for_each_head_are_cut_on_dimension_0(tmp_path):
    """(arcee-ai/mergekit#674) Cohere's q_norm is [heads, head_dim]: a rank has its heads' rows."""
    rules = {
        name: f"{{qkv-head: {axis}, width: 1, in: head_dim}}"
        for name, axis in (("q_norm", "q"), ("k_norm", "kv"))
    }
    model = with_norms(tmp_path, rules, (8, 2), (2, 2))
    ranks = model.cut(4)
    assert model.held(ranks, Q_NORM, names("q", 8)) == ["q0 q1", "q2 q3", "q4 q5", "q6 q7"]
    assert model.held(ranks, K_NORM, names("k", 2)) == ["k0", "k0", "k1", "k1"]


def test_sinks_are_cut_with_their_heads(tmp_path):
    """(NVIDIA-NeMo/RL#1684) A tensor-parallel plan had no style for gpt-oss's sinks, one number per head."""
    spec = "extends: llama\nmodules:\n  model.layers.{layer}.self_attn.sinks: {qkv-head: q, width: 1}\n"
    config = llama_config()
    sinks = {"model.layers.0.self_attn.sinks": np.arange(8, dtype=np.float32)}
    model = checkpoint(tmp_path / "model", config, llama_shapes(config), spec=spec, given=sinks)
    ranks = model.cut(2)
    assert ranks[1]["model.layers.0.self_attn.sinks"].tolist() == [4, 5, 6, 7]


def test_gpt_oss_cuts_its_sinks():
    """(NVIDIA-NeMo/RL#1684) The built-in spec has the rule."""
    (placed,) = (placed for placed in spec_named("gpt_oss").rules if placed.template.endswith(".sinks"))
    assert (placed.rule.described(), str(placed.rule.width[0])) == ("qkv-head q", "1")


def slopes(heads):
    """ALiBi's slopes: powers of 2^(-8/n) for n a power of two; beyond it, every other one of 2n's follows."""
    power = 1 << (heads.bit_length() - 1)
    base = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    return np.array(base + [2.0 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)])


@pytest.mark.parametrize(
    ("heads", "exponents"), [(8, [-5, -6, -7, -8]), (6, [-8, -1, -3])], ids=["8 heads", "6 heads"]
)
@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_slopes_are_those_of_the_whole_models_heads(name, heads, exponents):
    """(bigscience-workshop/Megatron-DeepSpeed#227, flashinfer-ai/flashinfer#1606) Ranks began at head 0."""
    spec = spec_named(name)
    (axis,) = {cut.axis for key, cut in spec.runtime.slice.items() if key.endswith(".alibi")}
    scope = ConfigScope(spec, {"num_attention_heads": heads, "hidden_size": 2 * heads})
    ((first, count),) = shares(scope.axis(axis), 2)[1]
    assert slopes(heads)[first : first + count].tolist() == [2.0**e for e in exponents]
