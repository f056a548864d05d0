"""Pre-sharded directories: what a rank holds is what it needs, and is never cut a second time."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tiny_checkpoints import accepted, load, rank_path, save, tpspec
from tiny_decoders import llama

from tpspec.errors import TpspecError
from tpspec.presharded import Presharded

DOWN = "model.layers.0.mlp.down_proj.weight"


def test_a_directory_that_is_cut_already_is_cut_anew_from_the_whole(tmp_path):
    """(vllm-project/vllm#52480) A down_proj halved for each rank was halved again as it was loaded."""
    model = llama(tmp_path / "model")
    twice = model.cut(2)
    assert [rank[DOWN].shape for rank in twice] == [(16, 8), (16, 8)]
    accepted("convert", model.out(2), tmp_path / "again", "--tp", 2)
    for rank in range(2):
        again = load(rank_path(tmp_path / "again", rank, 2))
        assert again.keys() == twice[rank].keys()
        for name, array in twice[rank].items():
            np.testing.assert_array_equal(again[name], array)


def test_a_rank_file_taken_for_a_checkpoint_is_refused_by_its_shapes(tmp_path):
    """(sgl-project/sglang#3320, vllm-project/vllm#52480) A rank's share is not the model."""
    model = llama(tmp_path / "model")
    model.cut(2)
    lone = tmp_path / "lone"
    lone.mkdir()
    shutil.copy(model.folder / "config.json", lone)
    shutil.copy(rank_path(model.out(2), 0, 2), lone / "model.safetensors")
    run = tpspec("convert", lone, tmp_path / "out", "--tp", 2)
    assert run.status == 1
    assert "down_proj.weight: shape [16, 8] has 8 in dimension 1, but config.json makes it 16" in run.err
    assert not (tmp_path / "out").exists()


def test_rank_files_without_their_manifest_are_no_checkpoint(tmp_path):
    """(sgl-project/sglang#3320) Two ranks' files look like a checkpoint in two parts."""
    model = llama(tmp_path / "model")
    model.cut(2)
    (model.out(2) / "tpspec.json").unlink()
    run = tpspec("convert", model.out(2), tmp_path / "out", "--tp", 2)
    assert run.status == 1
    assert not (tmp_path / "out").exists()


def test_a_rank_of_another_shape_than_its_cut_is_refused(tmp_path):
    """(vllm-project/vllm#52480) A quarter where a half belongs is found before it is loaded."""
    model = llama(tmp_path / "model")
    ranks = model.cut(2)
    quarter = {**ranks[1], DOWN: np.ascontiguousarray(ranks[1][DOWN][:, :4])}
    path = rank_path(model.out(2), 1, 2)
    save(path, quarter)
    manifest = json.loads((model.out(2) / "tpspec.json").read_text())
    manifest["ranks"][1]["size"] = path.stat().st_size
    (model.out(2) / "tpspec.json").write_text(json.dumps(manifest))
    problem = rf"{DOWN}: is F32 \[16, 4\], its cut gives F32 \[16, 8\]"
    with pytest.raises(TpspecError, match=problem):
        Presharded.open(model.out(2)).check_rank(1, 2)
    run = tpspec("merge", model.out(2), tmp_path / "merged")
    assert run.status == 1
    assert f"{DOWN}: is F32 [16, 4], its cut gives F32 [16, 8]" in run.err
    assert not (tmp_path / "merged").exists()


def test_ranks_of_another_tp_are_refused(tmp_path):
    """(sgl-project/sglang#3320) Files cut for 4 ranks, loaded by 2."""
    model = llama(tmp_path / "model")
    model.cut(4)
    with pytest.raises(TpspecError, match="was cut for tp 4, not for tp 2"):
        Presharded.open(model.out(4)).check_rank(0, 2)


@pytest.mark.parametrize("version", [0, 2, "1", None])
@pytest.mark.parametrize("command", ["verify", "merge", "convert"])
def test_a_manifest_of_another_format_is_refused(tmp_path, command, version):
    """(ls1intum/edutelligence#762) Weights saved after processing were read as if they were raw."""
    model = llama(tmp_path / "model")
    accepted("convert", model.folder, model.out(2), "--tp", 2)
    manifest = json.loads((model.out(2) / "tpspec.json").read_text())
    assert manifest["format"] == 1
    (model.out(2) / "tpspec.json").write_text(json.dumps({**manifest, "format": version}))
    out = tmp_path / "result"
    options = {"verify": (), "merge": (out,), "convert": (out, "--tp", 1)}[command]
    run = tpspec(command, model.out(2), *options)
    assert run.status == 1
    assert f"tpspec.json has format {version!r}" in run.err
    assert "reads format 1 only" in run.err
    assert not out.exists()
