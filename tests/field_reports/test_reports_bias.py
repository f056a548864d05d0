"""Biases of row-parallel matrices: in the sum of the ranks, each counts once."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_checkpoints import accepted, checkpoint, load, rank_path, save, tpspec

MLP = """
hidden: hidden_size
axes: {ffn: {units: intermediate_size}}
modules:
  up:   {column: ffn}
  down: {row: ffn, bias: true}
"""


def mlp(tmp_path):
    """down = ones(2, 4) with the bias [10, 20]."""
    given = {
        "up.weight": np.ones((4, 2), np.float32),
        "down.weight": np.ones((2, 4), np.float32),
        "down.bias": np.array([10, 20], np.float32),
    }
    config = {"hidden_size": 2, "intermediate_size": 4}
    return checkpoint(tmp_path / "model", config, {}, spec=MLP, given=given)


def summed(ranks, module, x):
    """The all-reduced output of a row-parallel linear: each rank's part of x, its own bias."""
    width = len(x) // len(ranks)
    parts = [x[i * width : (i + 1) * width] for i in range(len(ranks))]
    return sum(rank[f"{module}.weight"] @ part + rank[f"{module}.bias"] for rank, part in zip(ranks, parts))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_row_bias_is_added_once_at_every_tp(tmp_path, tp):
    """(Wenyueh/MinivLLM#80) The bias on every rank gives [24, 44] at tp 2."""
    assert summed(mlp(tmp_path).cut(tp), "down", np.ones(4)).tolist() == [14, 24]


def test_a_row_bias_on_rank_0_alone_passes_and_comes_back(tmp_path):
    """(huggingface/text-generation-inference#1036) Rank 0 alone has the bias: right, and no loss."""
    model = mlp(tmp_path)
    ranks = model.cut(2)
    assert [rank["down.bias"].tolist() for rank in ranks] == [[10, 20], [0, 0]]
    back = load(tmp_path / "model-tp2-merged" / "model.safetensors")
    assert back["down.bias"].tolist() == [10, 20]


def test_a_row_bias_on_every_rank_does_not_verify(tmp_path):
    """(Wenyueh/MinivLLM#80) Rank 1's bias written back as rank 0's is found, by hash and by content."""
    model = mlp(tmp_path)
    ranks = model.cut(2)
    save(rank_path(model.out(2), 1, 2), {**ranks[1], "down.bias": ranks[0]["down.bias"]})
    run = tpspec("verify", model.out(2))
    assert run.status == 1
    assert "model-rank-00001-of-00002.safetensors" in run.out + run.err
