"""Scales: they are cut where their weight is, in whole blocks, and scalars are on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, names
from tiny_decoders import llama_config, llama_shapes

from tpspec.checkpoint import open_checkpoint
from tpspec.layout import Segment
from tpspec.resolve import choose_spec, resolve

LAYER = "model.layers.0"
BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def quantized(tmp_path, ffn, block=128):
    """A Llama whose MLP is stored in float8, with a scale per block of rows and columns."""
    config = llama_config(
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=ffn,
        quantization_config={"quant_method": "fp8", "weight_block_size": [block, block]},
    )
    shapes = llama_shapes(config)
    given = {}
    for name in ("gate_proj", "up_proj", "down_proj"):
        weight = f"{LAYER}.mlp.{name}.weight"
        rows, columns = shapes.pop(weight)
        given[weight] = (np.arange(rows * columns) % 251 + 1).astype(np.uint8).reshape(rows, columns)
        shapes[f"{weight}_scale_inv"] = (-(-rows // block), -(-columns // block))
    return checkpoint(tmp_path / "model", config, shapes, given=given)


def test_a_cut_inside_a_quantization_block_is_an_error_naming_tensor_and_block(tmp_path):
    """(sgl-project/sglang#3345) 384 / 2 = 192 is no multiple of 128: two ranks would share a scale."""
    model = quantized(tmp_path, 384)
    said = model.refusal(2)
    for name, tag in (("gate_proj", "column"), ("up_proj", "column"), ("down_proj", "row")):
        problem = f"{tag} ffn, quantization block = 128: 192 % 128 = 64"
        assert f"{LAYER}.mlp.{name}.weight_scale_inv: {problem}" in said
    assert "self_attn" not in said


def test_the_block_that_a_rank_boundary_splits_depends_on_its_size(tmp_path):
    """(sgl-project/sglang#3345) With blocks of 64, 192 columns are three."""
    model = quantized(tmp_path, 384, block=64)
    scales = f"{LAYER}.mlp.down_proj.weight_scale_inv"
    found = model.held(model.cut(2), scales, names("s", 6), dim=1)
    assert found == ["s0 s1 s2", "s3 s4 s5"]


def test_scales_are_cut_on_the_dimension_on_which_their_weight_is(tmp_path):
    """(ml-explore/mlx-lm#1734, vllm-project/vllm-omni#5761) The weight was cut, its scales left whole."""
    model = quantized(tmp_path, 512)
    ranks = model.cut(2)
    for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        weight, scales = f"{LAYER}.mlp.{name}.weight", f"{LAYER}.mlp.{name}.weight_scale_inv"
        for rank in ranks:
            assert [128 * n for n in rank[scales].shape] == list(rank[weight].shape)
        assert model.held(ranks, scales, names("s", 4), dim=dim) == ["s0 s1", "s2 s3"]
    dequantized = [
        np.kron(rank[f"{LAYER}.mlp.down_proj.weight_scale_inv"], np.ones((128, 128)))
        * rank[f"{LAYER}.mlp.down_proj.weight"]
        for rank in ranks
    ]
    whole = np.kron(model.tensors[f"{LAYER}.mlp.down_proj.weight_scale_inv"], np.ones((128, 128)))
    whole = whole * model.tensors[f"{LAYER}.mlp.down_proj.weight"]
    np.testing.assert_array_equal(np.concatenate(dequantized, 1), whole)


def test_with_padding_a_rank_holds_whole_blocks(tmp_path):
    """(vllm-project/vllm#52997) Padded to 512 columns, no two ranks share a tile and its scale."""
    model = quantized(tmp_path, 384)
    stored = open_checkpoint(model.folder)
    resolution = resolve(choose_spec(stored.config), stored.config, stored.tensors, "kv")
    scales = resolution.layout(2).tensors[f"{LAYER}.mlp.down_proj.weight_scale_inv"]
    assert scales.cut.shares == ((Segment(0, 2),), (Segment(2, 1), Segment(None, 1)))
    weight = resolution.layout(2).tensors[f"{LAYER}.mlp.down_proj.weight"]
    assert [weight.local_shape(rank) for rank in range(2)] == [(256, 256)] * 2


def scaled(tmp_path):
    """A Llama in float8 with a scale per output channel, or one for all, and scales of its cache."""
    config = llama_config(quantization_config={"quant_method": "fp8"})
    shapes = llama_shapes(config)
    weights = [f"{LAYER}.mlp.{name}.weight" for name in ("up_proj", "down_proj", "gate_proj")]
    given = {name: np.arange(256, dtype=np.uint8).reshape(16, 16) for name in weights}
    scales = {
        f"{LAYER}.mlp.up_proj.weight_scale": (16, 1),
        f"{LAYER}.mlp.down_proj.weight_scale": (16, 1),
        f"{LAYER}.mlp.gate_proj.weight_scale": (),
        f"{LAYER}.mlp.up_proj.input_scale": (),
        f"{LAYER}.self_attn.k_scale": (),
        f"{LAYER}.self_attn.v_scale": (),
    }
    kept = {name: shape for name, shape in shapes.items() if name not in given}
    return checkpoint(tmp_path / "model", config, {**kept, **scales}, given=given)


def test_a_scale_per_output_channel_is_cut_under_column_and_whole_under_row(tmp_path):
    """(huggingface/transformers#37543) [out, 1] has something to cut only where the outputs are cut."""
    model = scaled(tmp_path)
    ranks = model.cut(4)
    found = model.held(ranks, f"{LAYER}.mlp.up_proj.weight_scale", names("s", 4), 4)
    assert found == ["s0", "s1", "s2", "s3"]
    for rank in ranks:
        for name in ("down_proj.weight_scale", "gate_proj.weight_scale", "up_proj.input_scale"):
            np.testing.assert_array_equal(rank[f"{LAYER}.mlp.{name}"], model.tensors[f"{LAYER}.mlp.{name}"])


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scalars_are_on_every_rank(tmp_path, name):
    """(vllm-project/vllm#1696, safetensors/safetensors#380) A tensor without dimensions cannot be sliced."""
    model = scaled(tmp_path)
    for rank in model.cut(8):
        scalar = rank[f"{LAYER}.self_attn.{name}"]
        assert scalar.shape == ()
        assert scalar == model.tensors[f"{LAYER}.self_attn.{name}"]


def gptq(tmp_path, sizes, matrices, *, ordered=False, group=128):
    """A Llama some of whose matrices, given as [in, out], GPTQ has packed; all numbers are random."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": ordered}
    config = llama_config(**sizes, quantization_config=settings)
    shapes, given = llama_shapes(config), {}
    random = np.random.default_rng(0)
    for name, (into, out) in matrices.items():
        shapes.pop(f"{LAYER}.{name}.weight", None)
        groups = np.arange(into) // group
        given |= {
            f"{LAYER}.{name}.qweight": random.integers(1, 2**31, (into // 8, out), np.int32),
            f"{LAYER}.{name}.qzeros": random.integers(1, 2**31, (into // group, out // 8), np.int32),
            f"{LAYER}.{name}.scales": random.random((into // group, out)).astype(np.float16),
            f"{LAYER}.{name}.g_idx": (random.permutation(groups) if ordered else groups).astype(np.int32),
        }
    return checkpoint(tmp_path / "model", config, shapes, given=given)


def test_a_head_cut_off_a_group_boundary_is_an_error_that_names_the_output_projection(tmp_path):
    """(intel/auto-round#643) 7 groups of inputs, here 3: two ranks of o_proj would share one."""
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 768}
    model = gptq(tmp_path, sizes, {"self_attn.o_proj": (384, 384)})
    said = model.refusal(2)
    assert f"{LAYER}.self_attn.o_proj.qzeros: row q, quantization group = 128: 192 % 128 = 64" in said
    assert "valid tp: 1, 3" in said
    assert "192 % 128 = 64" in model.validate(2).out


def test_row_shards_under_activation_order_keep_global_groups_and_all_scales(tmp_path):
    """(vllm-project/vllm#7374) A rank's inputs may belong to any group: their scales are on every rank."""
    model = gptq(tmp_path, {"intermediate_size": 256}, {"mlp.down_proj": (256, 16)}, ordered=True)
    ranks, name = model.cut(2), f"{LAYER}.mlp.down_proj"
    assert [set(rank[f"{name}.g_idx"]) for rank in ranks] == [{0, 1}, {0, 1}]
    for rank in ranks:
        for whole in ("scales", "qzeros"):
            np.testing.assert_array_equal(rank[f"{name}.{whole}"], model.tensors[f"{name}.{whole}"])
    parts = [unpacked(rank, name) for rank in ranks]
    np.testing.assert_array_equal(np.concatenate(parts), unpacked(model.tensors, name))


def unpacked(tensors, name):
    """A GPTQ matrix [in, out] in numbers: (weight - (zero point + 1)) × scale of each input's group."""
    nibbles = 4 * np.arange(8)
    qweight, qzeros = tensors[f"{name}.qweight"], tensors[f"{name}.qzeros"]
    weight = (qweight[:, None] >> nibbles[:, None] & 15).reshape(-1, qweight.shape[1])
    zeros = ((qzeros[:, :, None] >> nibbles & 15) + 1 & 15).reshape(qzeros.shape[0], -1)
    groups = tensors[f"{name}.g_idx"]
    return (weight - zeros[groups]) * tensors[f"{name}.scales"][groups].astype(np.float32)


def test_a_packed_merged_matrix_is_cut_part_by_part(tmp_path):
    """(xLLM-AI/xllm#1616) GLM-4's gate_up_proj, packed: columns and their scales, gates and ups apart."""
    matrix = {"mlp.gate_up_proj": (16, 32)}
    model = gptq(tmp_path, {}, matrix, group=16)
    merged = "extends: llama\nmodules:\n  model.layers.{layer}.mlp.gate_up_proj: {merged: [ffn, ffn]}\n"
    merged += "  model.layers.{layer}.mlp.{gate_proj,up_proj}: null\n"
    kept = {n: t for n, t in model.tensors.items() if ".gate_proj" not in n and ".up_proj" not in n}
    fused = checkpoint(tmp_path / "fused", open_checkpoint(model.folder).config, {}, given=kept, spec=merged)
    ranks, name = fused.cut(2), f"{LAYER}.mlp.gate_up_proj"
    units = names("g", 2) + " " + names("u", 2)
    assert fused.held(ranks, f"{name}.qweight", units, 8, dim=1) == ["g0 u0", "g1 u1"]
    assert fused.held(ranks, f"{name}.scales", units, 8, dim=1) == ["g0 u0", "g1 u1"]
    assert fused.held(ranks, f"{name}.qzeros", units, dim=1) == ["g0 u0", "g1 u1"]
