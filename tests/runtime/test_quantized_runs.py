"""Ranks of quantized checkpoints give the logits of the model whose weights are dequantized."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import quantizers
import torch
from quantizers import Quantizer
from safetensors.torch import load_file, save_file

from tpspec.checkpoint import open_checkpoint
from tpspec.converters.convert import convert
from tpspec.converters.pad import pad
from tpspec.converters.sources import open_source
from tpspec.errors import TpspecError
from tpspec.language.registry import spec_named
from tpspec.padded_model import ALIGN, padded_model
from tpspec.padding import Order
from tpspec.resolve import choose_spec, resolve, resolve_checked
from tpspec.runtime.prove import checkpoint_subject, prove
from tpspec.runtime.tiny import tiny_model

WIDE = {"intermediate_size": 256}
CASES: dict[str, tuple[str, Mapping[str, Any], Callable[[], Quantizer]]] = {
    "gptq": ("llama", WIDE, lambda: quantizers.gptq(4)),
    "gptq-act-order-fused": ("phi3", WIDE, lambda: quantizers.gptq(4, ordered=True)),
    "awq": ("llama", WIDE, quantizers.awq),
    "fp8-block-experts": (
        "qwen3_moe",
        {**WIDE, "moe_intermediate_size": 64},
        lambda: quantizers.fp8("block"),
    ),
    "mxfp4-stacked-experts": ("gpt_oss", WIDE, quantizers.mxfp4),
    "nvfp4": ("llama", WIDE, quantizers.modelopt),
    "int4": (
        "phi3",
        WIDE,
        lambda: quantizers.compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
    ),
}


PADDED = {
    "hidden_size": 96,
    "head_dim": 32,
    "intermediate_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def stored(folder: Path, by: Quantizer, spec_name: str, *, head: bool = False) -> tuple[Path, Path]:
    """The checkpoint in a folder with its matrices quantized, and with what they are read as."""
    checkpoint = open_checkpoint(folder)
    resolution = resolve(spec_named(spec_name), checkpoint.config, checkpoint.tensors)
    least = 3 if by.name == "mxfp4" else 2  # gpt-oss keeps its attention as it is
    cut = ("row", "column", "qkv-head", "merged", *(["vocab"] if head else []))
    matrices = {
        item.tensor.name
        for item in resolution.shared
        if item.placed.rule.tag in cut and len(item.tensor.shape) >= least and "embed" not in item.tensor.name
    }
    parts, plain = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name not in matrices:
            parts[name] = plain[name] = tensor
        elif tensor.dim() == 3:  # a stack is [expert, in, out], its quantized form [expert, out, in]
            made, whole = by.stacked(tensor.transpose(1, 2))
            plain[name] = whole.transpose(1, 2).contiguous()
            parts |= {name + part.removeprefix("weight"): each for part, each in made.items()}
        else:
            made, whole = by.quantize(tensor)
            plain[name] = whole.float()
            parts |= {f"{name.removesuffix('weight')}{part}": each for part, each in made.items()}
    return _write(folder, "quantized", parts, by.settings), _write(folder, "plain", plain, None)


def _write(source: Path, name: str, tensors: Mapping[str, torch.Tensor], settings: Any) -> Path:
    folder = source.with_name(name)
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    if settings:
        config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors", {"format": "pt"})
    return folder


def failure(
    tmp_path: Path,
    spec_name: str,
    changes: Mapping[str, Any],
    by: Quantizer,
    tp: int,
    pad: Order | None = None,
) -> str:
    """What a proof finds wrong with the ranks of a quantized model, beside its dequantized weights."""
    spec = spec_named(spec_name)
    tiny_model(spec, changes).save_pretrained(tmp_path / "model")
    quantized, plain = stored(tmp_path / "model", by, spec_name)
    checkpoint = open_checkpoint(quantized)
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors, pad)
    subject = replace(checkpoint_subject(plain, spec), checkpoint=quantized, resolution=resolution)
    return prove(subject, tp).failure


@pytest.mark.parametrize("name", CASES)
def test_the_ranks_give_the_logits_of_the_dequantized_model(name: str, tmp_path: Path) -> None:
    """Converted, merged byte for byte, and every rank's logits in fp32 beside transformers' own."""
    spec_name, changes, quantizer = CASES[name]
    if name == "int4":
        pytest.importorskip("compressed_tensors")
    torch.manual_seed(0)
    assert failure(tmp_path, spec_name, changes, quantizer(), 2) == ""


def test_padded_ranks_of_a_quantized_model_give_its_logits_too(tmp_path: Path) -> None:
    """192 columns are six groups of 32: four ranks hold two each, and six heads become eight."""
    assert failure(tmp_path, "llama", PADDED, quantizers.gptq(4), 4, "kv") == ""


@pytest.mark.parametrize("name", ["one group", "activation order", "packed channels", "packed order"])
def test_no_zero_head_stands_beside_real_ones_where_stored_zeros_are_other_values(
    name: str, tmp_path: Path
) -> None:
    """Scales that the inputs share: three heads to a KV head become three copies, not two times two."""
    if name.startswith("packed"):
        pytest.importorskip("compressed_tensors")
    quantizer: Mapping[str, Callable[[], Quantizer]] = {
        "one group": lambda: quantizers.gptq(4, group=-1),
        "activation order": lambda: quantizers.gptq(4, ordered=True),
        "packed channels": lambda: quantizers.compressed("pack-quantized", num_bits=4, strategy="channel"),
        "packed order": lambda: quantizers.reordered(4),
    }
    assert failure(tmp_path, "llama", PADDED, quantizer[name](), 4, "kv") == ""


def test_a_last_group_that_is_not_full_is_padded(tmp_path: Path) -> None:
    """200 columns are six groups of 32 and one of 8, whose other 24 inputs are zeros, and their g_idx too."""
    assert failure(tmp_path, "llama", {**PADDED, "intermediate_size": 200}, quantizers.gptq(4), 4, "kv") == ""


def test_a_quantized_checkpoint_is_proved_against_one_rank_s_weights(tmp_path: Path) -> None:
    spec = spec_named("llama")
    tiny_model(spec, WIDE).save_pretrained(tmp_path / "model")
    quantized, _ = stored(tmp_path / "model", quantizers.awq(), "llama")
    assert prove(checkpoint_subject(quantized, spec), 4).failure == ""


def test_biases_of_zeros_that_autogptq_adds_are_not_missed(tmp_path: Path) -> None:
    """Llama has no biases here; a checkpoint's own are cut with their matrices, and no rank needs them."""
    spec = spec_named("llama")
    tiny_model(spec, {**WIDE, "attention_bias": False, "mlp_bias": False}).save_pretrained(tmp_path / "model")
    quantized, _ = stored(tmp_path / "model", quantizers.gptq(4), "llama")
    tensors = load_file(quantized / "model.safetensors")
    biases = {
        name.replace("scales", "bias"): torch.zeros(tensor.shape[1])
        for name, tensor in tensors.items()
        if name.endswith("scales")
    }
    save_file({**tensors, **biases}, quantized / "model.safetensors", {"format": "pt"})
    assert prove(checkpoint_subject(quantized, spec), 2).failure == ""


def test_a_quantized_head_is_cut_and_padded_with_its_scales(tmp_path: Path) -> None:
    """102 rows on four ranks: the last one holds zeros behind the vocabulary, and scales of zero."""
    pytest.importorskip("compressed_tensors")
    spec, by = spec_named("llama"), quantizers.compressed("int-quantized", num_bits=8, strategy="channel")
    tiny_model(spec, WIDE).save_pretrained(tmp_path / "model")
    settings = {**by.settings, "ignore": []}
    quantized, plain = stored(tmp_path / "model", replace(by, settings=settings), "llama", head=True)
    checkpoint = open_checkpoint(quantized)
    assert checkpoint.tensors["lm_head.weight"].dtype == "I8"
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors)
    subject = replace(checkpoint_subject(plain, spec), checkpoint=quantized, resolution=resolution)
    assert prove(subject, 4).failure == ""


def test_a_head_that_only_its_tensors_show_to_be_quantized_is_padded_in_whole_packs(tmp_path: Path) -> None:
    """104 rows are 13 packs of eight: three ranks hold five each."""
    spec, changes = spec_named("llama"), {**WIDE, "vocab_size": 104}
    tiny_model(spec, changes).save_pretrained(tmp_path / "model")
    quantized, plain = stored(tmp_path / "model", quantizers.awq(), "llama", head=True)
    checkpoint = open_checkpoint(quantized)
    assert "lm_head.qweight" in checkpoint.tensors
    resolution = resolve(spec, checkpoint.config, checkpoint.tensors, "kv")
    assert resolution.layout(3).tensors["lm_head.qweight"].local_shape(2)[1] == 5
    subject = replace(checkpoint_subject(plain, spec), checkpoint=quantized, resolution=resolution)
    assert prove(subject, 3).failure == ""


def pad_for(source: Path, out: Path, tp: int, order: Order) -> Path:
    """A checkpoint, written as one that a tp divides."""
    reader = open_source(str(source))
    resolution = resolve_checked(reader.checkpoint, tp, None, order, ALIGN)
    pad(reader, out, padded_model(reader.checkpoint, resolution, tp), {})
    return out


@pytest.mark.parametrize(
    ("spec_name", "name", "order", "tp"),
    [
        ("llama", "gptq", "kv", 4),
        ("llama", "one group", "weights", 4),
        ("llama", "awq", "kv", 5),
        ("llama", "int4", "kv", 5),
        ("llama", "fp8 blocks", "kv", 4),
        ("llama", "fp8 rows", "weights", 5),
        ("qwen2", "awq", "kv", 4),
        ("mixtral", "gptq", "kv", 4),
    ],
)
def test_a_padded_quantized_checkpoint_is_one_that_the_tp_divides(
    spec_name: str, name: str, order: Order, tp: int, tmp_path: Path
) -> None:
    """Its ranks give the logits of the model that it was made from, dequantized."""
    if name == "int4":
        pytest.importorskip("compressed_tensors")
    quantizer: Mapping[str, Callable[[], Quantizer]] = {
        "gptq": lambda: quantizers.gptq(4),
        "one group": lambda: quantizers.gptq(8, group=-1),
        "awq": quantizers.awq,
        "int4": lambda: quantizers.compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
        "fp8 blocks": lambda: quantizers.fp8("block"),
        "fp8 rows": lambda: quantizers.fp8("channel", name="weight_scale"),
    }
    spec, plain_attention = spec_named(spec_name), {"use_sliding_window": False, "layer_types": None}
    changes = {**PADDED, **(plain_attention if spec_name == "qwen2" else {})}
    tiny_model(spec, changes).save_pretrained(tmp_path / "model")
    quantized, plain = stored(tmp_path / "model", quantizer[name](), spec_name)
    written = open_checkpoint(pad_for(quantized, tmp_path / "out", tp, order))
    unpadded = resolve(choose_spec(written.config), written.config, written.tensors)
    subject = replace(checkpoint_subject(plain, spec), checkpoint=written.directory, resolution=unpadded)
    assert prove(subject, tp).failure == ""


def test_a_padded_checkpoint_counts_its_groups_and_its_shapes_anew(tmp_path: Path) -> None:
    """GPTQ's g_idx, by which some readers go, and the shape that packed integers are unpacked to."""
    pytest.importorskip("compressed_tensors")
    spec = spec_named("llama")
    tiny_model(spec, PADDED).save_pretrained(tmp_path / "model")
    quantized, _ = stored(tmp_path / "model", quantizers.gptq(4), "llama")
    convert(
        open_source(str(quantized)),
        tmp_path / "cut",
        resolve_checked(open_checkpoint(quantized), 2).layout(2),
    )
    for source in (quantized, tmp_path / "cut"):
        tensors = load_file(pad_for(source, tmp_path / f"from-{source.name}", 4, "kv") / "model.safetensors")
        for module, inputs in (("self_attn.o_proj", 256), ("self_attn.q_proj", 96), ("mlp.down_proj", 256)):
            groups = tensors[f"model.layers.1.{module}.g_idx"]
            assert torch.equal(groups, torch.arange(inputs, dtype=torch.int32) // quantizers.GROUP)
    (tmp_path / "packed").mkdir()
    by = quantizers.compressed("pack-quantized", num_bits=4, strategy="group", group_size=32)
    tiny_model(spec, PADDED).save_pretrained(tmp_path / "packed" / "model")
    packed, _ = stored(tmp_path / "packed" / "model", by, "llama")
    tensors = load_file(pad_for(packed, tmp_path / "packed" / "out", 4, "kv") / "model.safetensors")
    for module, shape in (("self_attn.o_proj", [96, 256]), ("self_attn.k_proj", [128, 96])):
        assert tensors[f"model.layers.1.{module}.weight_shape"].tolist() == shape


def test_inputs_in_activation_order_are_padded_by_convert_alone(tmp_path: Path) -> None:
    spec = spec_named("llama")
    tiny_model(spec, PADDED).save_pretrained(tmp_path / "model")
    quantized, _ = stored(tmp_path / "model", quantizers.gptq(4, ordered=True), "llama")
    with pytest.raises(TpspecError) as refused:
        pad_for(quantized, tmp_path / "out", 4, "kv")
    assert "down_proj.g_idx: its inputs are in activation order, in which zeros have no group" in str(
        refused.value
    )
    assert "tpspec convert --pad" in refused.value.remedy
    assert not (tmp_path / "out").exists()
