"""Files: what is missing is found before anything is written; what is half written never looks whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tiny_checkpoints import INDEX, accepted, checkpoint, load, rank_path, shard_name, tpspec, write_index
from tiny_decoders import llama, llama_config, llama_shapes

ONE, TWO = shard_name(1, 2), shard_name(2, 2)


def test_an_indexed_file_that_is_absent_is_an_error_before_any_output(tmp_path):
    """(sgl-project/sglang#32279) The server started without the file, and answered with garbage."""
    model = llama(tmp_path / "model", files=2)
    (model.folder / TWO).unlink()
    assert f"{TWO}: does not exist" in model.refusal(2)
    assert model.validate(2).status == 1


def test_a_tensor_that_its_mapped_file_lacks_is_an_error_naming_both(tmp_path):
    """(huggingface/huggingface_hub#4725) The index maps the tensor to a file that does not hold it."""
    model = llama(tmp_path / "model", files=2)
    index = json.loads((model.folder / INDEX).read_text())
    weight_map = index["weight_map"]
    assert weight_map["model.norm.weight"] == ONE
    write_index(model.folder, {**weight_map, "model.norm.weight": TWO}, index["metadata"]["total_size"])
    assert f"{TWO}: lacks what the index puts there: model.norm.weight" in model.refusal(2)


def test_the_ranks_together_hold_every_tensor_and_the_index_comes_back_whole(tmp_path):
    """(NVIDIA-NeMo/Automodel#2096) An index written by one rank listed that rank's tensors only."""
    model = llama(tmp_path / "model", {"model.layers.0.self_attn.rotary_emb.inv_freq": (1,)}, files=3)
    ranks = model.cut(4)
    extras = load(model.out(4) / "extras.safetensors")
    assert set().union(*ranks, extras) == set(model.tensors)
    index = json.loads((tmp_path / "model-tp4-merged" / INDEX).read_text())
    assert set(index["weight_map"]) == set(model.tensors)
    merged = [load(tmp_path / "model-tp4-merged" / shard_name(n, 3)) for n in (1, 2, 3)]
    nbytes = sum(array.nbytes for arrays in merged for array in arrays.values())
    assert index["metadata"]["total_size"] == nbytes


def test_slices_along_columns_are_saved(tmp_path):
    """(NVIDIA/TensorRT-LLM#1662, huggingface/optimum-neuron#708) A view of columns is not contiguous."""
    model = llama(tmp_path / "model", intermediate_size=24)
    ranks = model.cut(4)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        whole = model.tensors[f"model.layers.0.{name}.weight"]
        for rank, columns in zip(ranks, np.split(whole, 4, axis=1), strict=True):
            np.testing.assert_array_equal(rank[f"model.layers.0.{name}.weight"], columns)


@pytest.mark.parametrize("shape", [(0,), (0, 16), (3, 0)])
def test_empty_tensors_are_kept(tmp_path, shape):
    """(vllm-project/vllm#1687, huggingface/safetensors#280) A tensor without elements has a shape."""
    config = llama_config()
    spec = "extends: llama\nmodules: {model.empty: replicated}\n"
    shapes = {**llama_shapes(config), "model.empty": shape}
    model = checkpoint(tmp_path / "model", config, shapes, spec=spec)
    assert [rank["model.empty"].shape for rank in model.cut(2)] == [shape, shape]
    assert load(tmp_path / "model-tp2-merged" / "model.safetensors")["model.empty"].shape == shape


FILE_LIMIT = 64 << 10
LIMITED = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT}, {FILE_LIMIT}))
runpy.run_module("tpspec", run_name="__main__")
"""


def test_a_write_that_fails_leaves_nothing_that_looks_complete_and_a_rerun_recovers(tmp_path):
    """(hiyouga/LlamaFactory#5155, facebookresearch/metaseq#53) Empty files under their final names."""
    model = llama(tmp_path / "model", hidden_size=64, intermediate_size=256)
    out = model.out(2)
    command = [sys.executable, "-c", LIMITED, "convert", str(model.folder), str(out), "--tp", "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "File too large" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (out / "tpspec.json").exists()
    assert not list(out.glob("*.safetensors"))
    assert tpspec("verify", out).status == 1
    assert tpspec("merge", out, tmp_path / "merged").status == 1
    assert not (tmp_path / "merged").exists()
    model.cut(2)
    assert rank_path(out, 0, 2).stat().st_size > FILE_LIMIT


def snapshot(model, path):
    """A cache's snapshot of a model: links to files that lie elsewhere."""
    path.mkdir(parents=True)
    for file in model.folder.iterdir():
        (path / file.name).symlink_to(os.path.relpath(file, path))
    return path


def test_links_of_a_snapshot_become_files(tmp_path):
    """(huggingface/huggingface_hub#1388) A copy of the links would point to where nothing is."""
    model = llama(tmp_path / "blobs", files=2)
    (model.folder / "tokenizer.json").write_text("{}")
    source = snapshot(model, tmp_path / "models--x" / "snapshots" / "0123")
    accepted("convert", source, tmp_path / "out", "--tp", 2)
    accepted("merge", tmp_path / "out", tmp_path / "merged")
    written = [*(tmp_path / "out").rglob("*"), *(tmp_path / "merged").rglob("*")]
    assert not [path for path in written if path.is_symlink()]
    for path in model.folder.iterdir():
        assert (tmp_path / "merged" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", [TWO, "config.json", "tokenizer.json"])
def test_a_dangling_link_is_named(tmp_path, name):
    """(huggingface/huggingface_hub#1388) The blob is gone, the snapshot's link is still there."""
    model = llama(tmp_path / "blobs", files=2)
    (model.folder / "tokenizer.json").write_text("{}")
    source = snapshot(model, tmp_path / "snapshot")
    (model.folder / name).unlink()
    run = tpspec("convert", source, tmp_path / "out", "--tp", 2)
    assert run.status == 1
    assert f"{name}: is a link to ../blobs/{name}, which does not exist" in run.err
    assert not (tmp_path / "out").exists()


def test_code_that_comes_with_a_model_is_copied_and_not_run(tmp_path):
    """(NVIDIA/Model-Optimizer#1245) A config with auto_map is useless without its files."""
    model = llama(tmp_path / "model", auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"})
    code = f"from pathlib import Path\nPath({str(tmp_path / 'was-run')!r}).touch()\nraise SystemExit(7)\n"
    for name in ("modeling_own.py", "configuration_own.py"):
        (model.folder / name).write_text(code)
    model.cut(2)
    for name in ("modeling_own.py", "configuration_own.py"):
        assert (model.out(2) / name).read_text() == code
    assert not (tmp_path / "was-run").exists()
