"""The ranks' pieces of fused matrices, read as the modelling code reads them.

A view splits a projection's output into heads, columns or groups by the sizes that the model has.
On a rank the model has local sizes, so the same view of the rank's piece has to give the whole
matrix's units that are the rank's: for BLOOM, `weight.view(heads, 3, width)[heads of the rank]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_models import VARIANTS

from tpspec.layout import Cut, Layout
from tpspec.resolve import resolve

UNITS = {"q": 8, "kv": 4, "ssm": 16, "group": 2, "ffn": 112, "moe": 24}
"""Units of each axis in the tiny models; KV heads and groups are copied once there are more ranks."""

Sizes = SimpleNamespace
Views = Mapping[str, np.ndarray]
View = Callable[[np.ndarray, Sizes], Views]


@cache
def layout(variant: str, tp: int) -> Layout:
    model = next(model for model in VARIANTS if str(model) == variant)
    return resolve(model.spec, model.checkpoint.config, model.checkpoint.tensors).layout(tp)


def units_of(axis: str, tp: int, rank: int) -> slice:
    units = UNITS[axis]
    if tp <= units:
        return slice(rank * units // tp, (rank + 1) * units // tp)
    return slice(rank * units // tp, rank * units // tp + 1)


def sizes(tp: int) -> Sizes:
    return Sizes(**{axis: max(1, units // tp) for axis, units in UNITS.items()})


def indices(cut: Cut, rank: int) -> np.ndarray:
    """The source indices that a rank holds, in the order of its piece."""
    return np.concatenate([np.arange(source, source + length) for source, length in cut.shares[rank]])


def per_head_qkv(rows: np.ndarray, n: Sizes) -> Views:
    """BLOOM, GPT-NeoX, Falcon-RW: `view(heads, 3, width)`."""
    heads = rows.reshape(n.q, 3, -1)
    return {"q q": heads[:, 0], "k q": heads[:, 1], "v q": heads[:, 2]}


def grouped_qkv(rows: np.ndarray, n: Sizes) -> Views:
    """Falcon's new architecture: `view(kv_heads, heads // kv_heads + 2, width)`."""
    groups = rows.reshape(n.kv, n.q // n.kv + 2, -1)
    return {"q q": groups[:, :-2].reshape(n.q, -1), "k kv": groups[:, -2], "v kv": groups[:, -1]}


def one_kv_head(rows: np.ndarray, n: Sizes) -> Views:
    """Falcon-7B: `view(heads + 2, width)`; every rank has the one key and the one value."""
    heads = rows.reshape(n.q + 2, -1)
    return {"q q": heads[:-2], "k": heads[-2], "v": heads[-1]}


def stacked_qkv(rows: np.ndarray, n: Sizes, width: int = 8) -> Views:
    """Phi-3: all queries, then all keys, then all values."""
    q, k, v = np.split(rows, [n.q * width, (n.q + n.kv) * width])
    return {"q q": q.reshape(n.q, -1), "k kv": k.reshape(n.kv, -1), "v kv": v.reshape(n.kv, -1)}


def thirds(rows: np.ndarray, n: Sizes) -> Views:
    """GPT-2: `split(split_size)`."""
    return {f"{kind} q": part.reshape(n.q, -1) for kind, part in zip("qkv", np.split(rows, 3), strict=True)}


def halves(rows: np.ndarray, _: Sizes) -> Views:
    """Phi-3's gate_up_proj: `chunk(2)`."""
    gate, up = np.split(rows, 2)
    return {"gate ffn": gate, "up ffn": up}


def alternate(rows: np.ndarray, _: Sizes) -> Views:
    """gpt-oss: `gate_up[..., ::2], gate_up[..., 1::2]`."""
    return {"gate ffn": rows[::2], "up ffn": rows[1::2]}


def mamba_in_proj(rows: np.ndarray, n: Sizes, state: int = 16) -> Views:
    """`split([intermediate, intermediate + 2 * groups * state, heads])`, and the middle once more."""
    inner = (len(rows) - n.ssm - 2 * n.group * state) // 2
    z, middle, dt = np.split(rows, [inner, len(rows) - n.ssm])
    return {"z ssm": z.reshape(n.ssm, -1), "dt ssm": dt, **mamba_conv1d(middle, n, state)}


def mamba_conv1d(rows: np.ndarray, n: Sizes, state: int = 16) -> Views:
    """`split([intermediate, groups * state, groups * state])`."""
    grouped = n.group * state
    x, b, c = np.split(rows, [len(rows) - 2 * grouped, len(rows) - grouped])
    return {
        "x ssm": x.reshape(n.ssm, -1),
        "B group": b.reshape(n.group, -1),
        "C group": c.reshape(n.group, -1),
    }


def latent_kv(rows: np.ndarray, n: Sizes, nope: int = 12) -> Views:
    """DeepSeek's kv_b_proj: `view(heads, nope + v)`, split there."""
    heads = rows.reshape(n.q, -1)
    return {"k q": heads[:, :nope], "v q": heads[:, nope:]}


def by(axis: str, rows: np.ndarray, n: Sizes) -> Views:
    """One unit after another."""
    return {f"unit {axis}": rows.reshape(getattr(n, axis), -1)}


by_q, by_kv, by_ffn, by_moe, by_ssm = (partial(by, axis) for axis in ("q", "kv", "ffn", "moe", "ssm"))

CASES: list[tuple[str, str, View]] = [
    ("llama-tiny", "model.layers.1.self_attn.q_proj.bias", by_q),
    ("llama-tiny", "model.layers.1.self_attn.k_proj.weight", by_kv),
    ("llama-tiny", "model.layers.1.self_attn.o_proj.weight", by_q),
    ("llama-tiny", "model.layers.1.mlp.down_proj.weight", by_ffn),
    ("qwen2-tiny", "model.layers.1.self_attn.v_proj.bias", by_kv),
    ("phi3-tiny", "model.layers.1.self_attn.qkv_proj.weight", stacked_qkv),
    ("phi3-tiny", "model.layers.1.mlp.gate_up_proj.weight", halves),
    ("gpt2-tiny", "transformer.h.1.attn.c_attn.weight", thirds),
    ("gpt2-tiny", "transformer.h.1.attn.c_attn.bias", thirds),
    ("gpt2-tiny", "transformer.h.1.attn.c_proj.weight", by_q),
    ("gpt2-tiny", "transformer.h.1.mlp.c_fc.weight", by_ffn),
    ("gpt_neox-tiny", "gpt_neox.layers.1.attention.query_key_value.weight", per_head_qkv),
    ("gpt_neox-tiny", "gpt_neox.layers.1.attention.query_key_value.bias", per_head_qkv),
    ("bloom-tiny", "transformer.h.1.self_attention.query_key_value.weight", per_head_qkv),
    ("bloom-published", "h.1.self_attention.query_key_value.bias", per_head_qkv),
    ("falcon-tiny", "transformer.h.1.self_attention.query_key_value.weight", grouped_qkv),
    ("falcon-one-norm", "transformer.h.1.self_attention.query_key_value.bias", grouped_qkv),
    ("falcon-multi-query", "transformer.h.1.self_attention.query_key_value.weight", one_kv_head),
    ("falcon-rw", "transformer.h.1.self_attention.query_key_value.weight", per_head_qkv),
    ("mixtral-tiny", "model.layers.1.block_sparse_moe.experts.3.w2.weight", by_ffn),
    ("qwen3_moe-tiny", "model.layers.1.mlp.experts.3.up_proj.weight", by_moe),
    ("olmo2-tiny", "model.layers.1.self_attn.q_norm.weight", by_q),
    ("olmo2-tiny", "model.layers.1.self_attn.k_norm.weight", by_kv),
    ("deepseek_v3-tiny", "model.layers.1.self_attn.q_b_proj.weight", by_q),
    ("deepseek_v3-no-q-lora", "model.layers.1.self_attn.q_proj.weight", by_q),
    ("deepseek_v3-tiny", "model.layers.1.self_attn.kv_b_proj.weight", latent_kv),
    ("deepseek_v3-tiny", "model.layers.1.self_attn.o_proj.weight", by_q),
    ("gpt_oss-tiny", "model.layers.1.self_attn.sinks", by_q),
    ("gpt_oss-tiny", "model.layers.1.mlp.experts.gate_up_proj", alternate),
    ("gpt_oss-tiny", "model.layers.1.mlp.experts.gate_up_proj_bias", alternate),
    ("gpt_oss-tiny", "model.layers.1.mlp.experts.down_proj", by_ffn),
    ("bamba-tiny", "model.layers.0.mamba.in_proj.weight", mamba_in_proj),
    ("bamba-tiny", "model.layers.0.mamba.conv1d.bias", mamba_conv1d),
    ("bamba-tiny", "model.layers.0.mamba.norm.weight", by_ssm),
    ("nemotron_h-tiny", "backbone.layers.0.mixer.in_proj.weight", mamba_in_proj),
    ("nemotron_h-tiny", "backbone.layers.0.mixer.conv1d.weight", mamba_conv1d),
    ("nemotron_h-tiny", "backbone.layers.0.mixer.A_log", by_ssm),
    ("nemotron_h-tiny", "backbone.layers.1.mixer.experts.2.down_proj.weight", by_moe),
    ("mamba2-tiny", "backbone.layers.0.mixer.out_proj.weight", by_ssm),
]


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize(("variant", "tensor", "view"), CASES, ids=[f"{v}-{t}" for v, t, _ in CASES])
def test_a_rank_reads_its_own_units_from_its_piece(variant, tensor, view, tp):
    cut = layout(variant, tp).tensors[tensor].cut
    whole = view(np.arange(cut.size), sizes(1))
    for rank in range(tp):
        local = view(indices(cut, rank), sizes(tp))
        for kind, expected in whole.items():
            axis = kind.partition(" ")[2]
            mine = expected[units_of(axis, tp, rank)] if axis else expected
            np.testing.assert_array_equal(local[kind], mine, err_msg=f"{kind} of rank {rank}")


@pytest.mark.parametrize(
    ("variant", "tensor"),
    [
        ("llama-tiny", "model.layers.0.self_attn.o_proj.bias"),
        ("llama-tiny", "model.layers.0.mlp.down_proj.bias"),
        ("gpt2-tiny", "transformer.h.0.mlp.c_proj.bias"),
        ("gpt_neox-tiny", "gpt_neox.layers.0.attention.dense.bias"),
        ("falcon-rw", "transformer.h.0.mlp.dense_4h_to_h.bias"),
        ("gpt_oss-tiny", "model.layers.0.mlp.experts.down_proj_bias"),
        ("nemotron_h-tiny", "backbone.layers.1.mixer.fc2_latent_proj.bias"),
        ("mamba2-biases", "backbone.layers.0.mixer.out_proj.bias"),
    ],
)
def test_what_every_rank_would_add_is_with_rank_0_alone(variant, tensor):
    shares = layout(variant, 4).tensors[tensor].cut.shares
    assert [share[0].source for share in shares] == [0, None, None, None]


@pytest.mark.parametrize("tensor", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_vocabulary_is_padded_at_its_end(tensor):
    found = layout("llama-tiny", 4)
    cut = found.tensors[tensor].cut
    assert [cut.length(rank) for rank in range(4)] == [26] * 4
    assert [cut.zeros(rank) for rank in range(4)] == [0, 0, 0, 2]
    assert found.padding()[tensor] == (102, 104)


@pytest.mark.parametrize(
    ("variant", "layer", "alternatives"),
    [
        ("mixtral-tiny", "model.layers.0.block_sparse_moe.experts", ["w1", "w3"]),
        ("qwen3_moe-tiny", "model.layers.1.mlp.experts", ["gate_proj", "up_proj"]),
        ("deepseek_v3-tiny", "model.layers.1.mlp.experts", ["gate_proj", "up_proj"]),
        ("nemotron_h-tiny", "backbone.layers.1.mixer.experts", ["down_proj"]),
    ],
)
def test_what_memory_stacks_lies_together_expert_by_expert(variant, layer, alternatives):
    order = list(layout(variant, 2).tensors)
    stacked = [f"{layer}.{expert}.{name}.weight" for expert in range(4) for name in alternatives]
    start = order.index(stacked[0])
    assert order[start : start + len(stacked)] == stacked
