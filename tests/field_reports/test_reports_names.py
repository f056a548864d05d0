"""Names that are more, fewer or other than the model's, and dtypes that stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, linear, load, norm, repeated
from tiny_decoders import deepseek, llama, llama_config, llama_shapes

INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"


def test_buffers_that_nothing_needs_are_ignored_and_counted(tmp_path):
    """(meta-pytorch/gpt-fast#42, huggingface/transformers#35255) inv_freq stopped the loading."""
    model = llama(tmp_path / "model", {INV_FREQ: (1,)})
    run = model.validate(2)
    assert run.status == 0
    assert "1 stored buffers are ignored" in run.out
    for rank in model.cut(2):
        assert INV_FREQ not in rank
    np.testing.assert_array_equal(
        load(model.out(2) / "extras.safetensors")[INV_FREQ], model.tensors[INV_FREQ]
    )


def gpt2(tmp_path, prefix, buffers):
    """A small GPT-2 of two layers."""
    config = {
        "model_type": "gpt2",
        "n_embd": 8,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 6,
        "vocab_size": 16,
    }
    block = {
        **norm("ln_1", 8),
        "attn.c_attn.weight": (8, 24),
        "attn.c_attn.bias": (24,),
        **linear("attn.c_proj", 8, 8),
        **norm("ln_2", 8),
        "mlp.c_fc.weight": (8, 32),
        "mlp.c_fc.bias": (32,),
        "mlp.c_proj.weight": (32, 8),
        "mlp.c_proj.bias": (8,),
        **buffers,
    }
    shapes = {
        f"{prefix}wte.weight": (16, 8),
        f"{prefix}wpe.weight": (6, 8),
        **repeated(f"{prefix}h", 2, block),
        **norm(f"{prefix}ln_f", 8),
    }
    return checkpoint(tmp_path / "model", config, shapes)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_masks_that_old_checkpoints_carry_are_ignored_and_counted(tmp_path, prefix):
    """(huggingface/transformers#29725) attn.bias is a mask, and no bias of attn."""
    model = gpt2(tmp_path, prefix, {"attn.bias": (1, 1, 6, 6), "attn.masked_bias": ()})
    assert "4 stored buffers are ignored" in model.validate(2).out
    for rank in model.cut(2):
        assert not [name for name in rank if name.endswith((".attn.bias", ".masked_bias"))]
        assert rank[f"{prefix}h.0.attn.c_attn.bias"].shape == (12,)


def test_a_tensor_that_is_neither_cut_nor_ignored_is_an_error(tmp_path):
    """(huggingface/transformers#29725) What no rule knows is never skipped."""
    model = llama(tmp_path / "model", {INV_FREQ: (1,), "model.layers.0.self_attn.mystery": (16, 2)})
    problem = "model.layers.0.self_attn.mystery: no rule of specs/llama.yaml names this tensor, shape [16, 2]"
    assert problem in model.refusal(2)
    assert INV_FREQ not in model.refusal(2)


def test_buffers_that_may_be_ignored_need_not_be_there(tmp_path):
    """(huggingface/text-generation-inference#1460) The loader demanded inv_freq of a file without it."""
    model = llama(tmp_path / "model")
    run = model.validate(2)
    assert run.status == 0
    assert "ignored" not in run.out
    model.cut(2)
    assert not (model.out(2) / "extras.safetensors").exists()


MTP = """
prefixes: [model., ""]
hidden: hidden_size
ranges: {layer: num_hidden_layers, mtp: [num_hidden_layers, num_hidden_layers + num_nextn_predict_layers]}
axes: {ffn: {units: intermediate_size}}
modules:
  layers.{layer}.mlp.up_proj:   {column: ffn}
  layers.{layer}.mlp.down_proj: {row: ffn}
"""


def with_mtp(tmp_path, prefix, rule):
    """Two layers, and a third for multi-token prediction with a projection of its own."""
    config = {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    block = {"mlp.up_proj.weight": (8, 4), "mlp.down_proj.weight": (4, 8)}
    shapes = {**repeated(f"{prefix}layers", 3, block), f"{prefix}layers.2.eh_proj.weight": (4, 8)}
    return checkpoint(tmp_path / "model", config, shapes, spec=MTP + rule)


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_layers_past_the_last_are_dropped_under_either_prefix(tmp_path, prefix):
    """(vllm-project/vllm#16450) The filter looked for model.layers.61 when `model.` was gone already."""
    model = with_mtp(tmp_path, prefix, "  layers.{mtp}.**: drop\n")
    for rank in model.cut(2):
        assert not [name for name in rank if "layers.2." in name]
        assert f"{prefix}layers.1.mlp.down_proj.weight" in rank
    extras = load(model.out(2) / "extras.safetensors")
    assert set(extras) == {name for name in model.tensors if "layers.2." in name}
    assert len(extras) == 3


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_layers_past_the_last_are_kept_whole_where_a_rule_says_so(tmp_path, prefix):
    """(vllm-project/vllm#16450) Keeping them is as explicit as dropping them."""
    model = with_mtp(tmp_path, prefix, "  layers.{mtp}.**: replicated\n")
    name = f"{prefix}layers.2.mlp.up_proj.weight"
    for rank in model.cut(2):
        np.testing.assert_array_equal(rank[name], model.tensors[name])


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_layers_past_the_last_without_a_rule_are_an_error(tmp_path, prefix):
    """(vllm-project/vllm#16450) Neither dropped nor kept without a word."""
    said = with_mtp(tmp_path, prefix, "").refusal(2)
    assert "layers.2.mlp.up_proj.weight: layer 2 is outside config.json's num_hidden_layers = 2" in said
    assert "layers.2.eh_proj.weight: no rule of" in said


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_deepseek_drops_its_multi_token_prediction(tmp_path, prefix):
    """(vllm-project/vllm#16450) The built-in spec takes the layer past the last for what it is."""
    mtp = {"layers.1.eh_proj.weight": (16, 32), "layers.1.shared_head.head.weight": (16, 16)}
    model = deepseek(tmp_path / "model", mtp, prefix=prefix, num_nextn_predict_layers=1)
    for rank in model.cut(2):
        assert f"{prefix}layers.0.mlp.down_proj.weight" in rank
        assert not [name for name in rank if "layers.1." in name]


def test_every_tensor_keeps_its_dtype(tmp_path):
    """(NVIDIA-NeMo/Automodel#2553, Blaizzy/mlx-vlm#2053) float32 corrections were cast to bfloat16."""
    config = llama_config()
    layer = "model.layers.0"
    spec = f"extends: llama\nmodules:\n  {layer}.mlp.e_score_correction_bias: replicated\n"
    spec += f"  {layer}.mlp.up_proj.weight_scale: {{column: ffn}}\n"
    bits = {
        name: (np.arange(np.prod(shape)) % 65521 + 1).astype(np.uint16).reshape(shape)
        for name, shape in llama_shapes(config).items()
    }
    given = {
        **bits,
        f"{layer}.mlp.e_score_correction_bias": np.array([1e-30, 1 / 3], np.float32),
        f"{layer}.mlp.up_proj.weight_scale": (np.arange(16) + 1 / 3).astype(np.float32),
        f"{layer}.mlp.down_proj.weight": (np.arange(256) % 255 + 1).astype(np.uint8).reshape(16, 16),
        f"{layer}.mlp.up_proj.weight": np.arange(1, 257).astype(np.float16).reshape(16, 16),
    }
    model = checkpoint(tmp_path / "model", config, {}, spec=spec, given=given)
    for rank in model.cut(2):
        assert {name: array.dtype for name, array in rank.items()} == {
            name: array.dtype for name, array in model.tensors.items()
        }
        assert rank[f"{layer}.mlp.e_score_correction_bias"].tolist() == [np.float32(1e-30), np.float32(1 / 3)]
