"""Scales: they are cut where their weight is, in whole blocks, and scalars are on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, names
from tiny_decoders import llama_config, llama_shapes

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


SCALED = """
extends: llama
modules:
  model.layers.{layer}.mlp.up_proj.weight_scale:   {column: ffn, in: 1}
  model.layers.{layer}.mlp.down_proj.weight_scale: replicated
  model.layers.{layer}.mlp.up_proj.input_scale:    replicated
  model.layers.{layer}.self_attn.{k_scale,v_scale}: replicated
"""


def scaled(tmp_path):
    """A Llama with a scale per output channel, and scalar scales."""
    config = llama_config()
    scales = {
        f"{LAYER}.mlp.up_proj.weight_scale": (16, 1),
        f"{LAYER}.mlp.down_proj.weight_scale": (16, 1),
        f"{LAYER}.mlp.up_proj.input_scale": (),
        f"{LAYER}.self_attn.k_scale": (),
        f"{LAYER}.self_attn.v_scale": (),
    }
    return checkpoint(tmp_path / "model", config, {**llama_shapes(config), **scales}, spec=SCALED)


def test_a_scale_per_output_channel_is_cut_under_column_and_whole_under_row(tmp_path):
    """(huggingface/transformers#37543) [out, 1] has something to cut only where the outputs are cut."""
    model = scaled(tmp_path)
    ranks = model.cut(4)
    found = model.held(ranks, f"{LAYER}.mlp.up_proj.weight_scale", names("s", 4), 4)
    assert found == ["s0", "s1", "s2", "s3"]
    for rank in ranks:
        for name in ("down_proj.weight_scale", "up_proj.input_scale"):
            np.testing.assert_array_equal(rank[f"{LAYER}.mlp.{name}"], model.tensors[f"{LAYER}.mlp.{name}"])


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_scalars_are_on_every_rank(tmp_path, name):
    """(vllm-project/vllm#1696, safetensors/safetensors#380) A tensor without dimensions cannot be sliced."""
    model = scaled(tmp_path)
    for rank in model.cut(8):
        scalar = rank[f"{LAYER}.self_attn.{name}"]
        assert scalar.shape == ()
        assert scalar == model.tensors[f"{LAYER}.self_attn.{name}"]
