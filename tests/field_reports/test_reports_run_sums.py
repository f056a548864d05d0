"""Sums over ranks, as they run: each bias, residual and expert counts once, and no partial sum is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import model_targets
import numpy as np
import pytest
import torch
from tiny_checkpoints import checkpoint
from tiny_ranks import seen, tiny
from torch import Tensor, nn

from tpspec.runtime.attach import Attached
from tpspec.runtime.collectives import Collectives
from tpspec.runtime.launch import Kind, launch
from tpspec.sites import Site

ROW = """
hidden: hidden_size
axes: {ffn: {units: intermediate_size}}
modules:
  up:   {column: ffn}
  down: {row: ffn, bias: true}
"""


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_row_bias_is_added_once(tmp_path: Path, tp: int):
    """(Wenyueh/MinivLLM#80) Ones, the bias [10, 20], ones as input: [14, 24] on every rank, not [24, 44]."""
    given = {
        "up.weight": np.ones((4, 2), np.float32),
        "down.weight": np.ones((2, 4), np.float32),
        "down.bias": np.array([10, 20], np.float32),
    }
    config = {"hidden_size": 2, "intermediate_size": 4}
    files = checkpoint(tmp_path / "model", config, {}, spec=ROW, given=given).cut(tp)

    def run(group: Collectives) -> list[list[float]]:
        down = nn.Linear(4 // tp, 2)
        down.load_state_dict(
            {name: torch.tensor(files[group.rank][f"down.{name}"]) for name in ("weight", "bias")}
        )
        Attached({"down": down}, [Site("reduce", "down")], group)
        with torch.inference_mode():
            output = down(torch.ones(4 // tp))
        return [gathered.tolist() for gathered in group.all_gather(output, "outputs")]

    assert launch(tp, run, kind="threads") == [[14, 24]] * tp


def large_biases(name: str, tensor: Tensor) -> None:
    """So large that one counted twice shows."""
    if name.endswith("bias"):
        tensor.mul_(10)


def test_the_output_biases_of_experts_count_once(tmp_path: Path):
    """(pytorch/torchtitan#4245) gpt-oss's down_proj_bias, and that of its attention."""
    assert tiny(tmp_path, "gpt_oss", large_biases).agrees(2)


@pytest.mark.parametrize("parallel", [True, False])
def test_the_row_biases_of_pythia_count_once(tmp_path: Path, parallel: bool):
    """(EleutherAI/gpt-neox#1220) With a parallel residual, attention's waits for the MLP's reduce."""
    model = tiny(tmp_path, "gpt_neox", large_biases, use_parallel_residual=parallel)
    assert model.agrees(2)
    assert model.agrees(4)


def silent(*endings: str) -> Callable[[str, Tensor], object]:
    """Parameters whose names end so are zero."""
    return lambda name, tensor: tensor.zero_() if name.endswith(endings) else None


@pytest.mark.parametrize(
    ("name", "layer", "last"),
    [
        ("mixtral", "model.layers.1", ["o_proj.weight", "experts.down_proj"]),
        ("qwen2_moe", "model.layers.0", ["o_proj.weight", "experts.down_proj", "expert.down_proj.weight"]),
        (
            "gpt_neox",
            "gpt_neox.layers.0",
            ["dense.weight", "dense.bias", "4h_to_h.weight", "4h_to_h.bias"],
        ),
        ("falcon", "transformer.h.0", ["dense.weight", "4h_to_h.weight"]),
    ],
)
def test_the_residual_is_added_once(tmp_path: Path, name: str, layer: str, last: list[str]):
    """(mirage-project/mirage#722) A layer whose branches give zero gives its input, not tp times it."""
    model = tiny(tmp_path, name, silent(*last))
    whole, _ = seen(model.model, layer)
    for _, gives in model.ranks(2, lambda rank: seen(rank.model, layer)):
        torch.testing.assert_close(gives, whole, rtol=1e-5, atol=1e-5)


def test_a_shared_expert_is_reduced_like_the_routed_ones(tmp_path: Path):
    """(vllm-project/tpu-inference#3435) Where the routed ones give zero, its partial sums are not left."""
    model = tiny(tmp_path, "qwen2_moe", silent("experts.down_proj"))
    _, whole = seen(model.model, "model.layers.0.mlp")
    assert whole.abs().max() > 0.01
    for _, gives in model.ranks(2, lambda rank: seen(rank.model, "model.layers.0.mlp")):
        torch.testing.assert_close(gives, whole, rtol=1e-5, atol=1e-5)


MLP = "model.layers.{layer}.mlp"
WHOLE = f"""
modules:
  {MLP}.shared_expert.{{gate_proj,up_proj}}: {{replicated: true, when: sparse}}
  {MLP}.shared_expert.down_proj: {{replicated: true, when: sparse}}
"""
OTHERS_REDUCED = f"""  {MLP}.experts.{{expert}}.down_proj:
    {{row: moe, when: sparse, reduce_at: "{MLP}.experts"}}
"""


FROM_RANK_0 = WHOLE.replace("down_proj: {replicated", "down_proj: {once")


@pytest.mark.parametrize(
    ("spec", "right"),
    [(WHOLE + OTHERS_REDUCED, True), (FROM_RANK_0, True), (WHOLE, False)],
    ids=["the routed ones are reduced alone", "rank 0 alone has it", "summed with them"],
)
def test_a_shared_expert_on_every_rank_counts_once(tmp_path: Path, spec: str, right: bool):
    """(sgl-project/sglang#35535) A replicated shared expert, summed with the routed ones, counts tp times."""
    assert tiny(tmp_path, "qwen2_moe", spec=spec).agrees(2) is right


def test_what_every_rank_computes_whole_is_not_reduced(tmp_path: Path):
    """(lightseekorg/tokenspeed#80) An MLP that is replicated: its layer has attention's all-reduce alone."""
    rules = "".join(
        f"  {MLP}.{name}: {{replicated: true}}\n" for name in ("{gate_proj,up_proj}", "down_proj")
    )
    model = tiny(tmp_path, "llama", large_biases, spec=f"modules:\n{rules}")
    assert model.agrees(2)
    assert model.ranks(2, lambda rank: rank.predicted()["all_reduce"]) == [3, 3]


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_a_reduced_module_gives_the_sum(kind: Kind):
    """(Wenyueh/MinivLLM#13) An all-reduce in place gives None, which went on in the sum's place."""
    assert launch(2, model_targets.reduced_linear, kind=kind) == [3.0, 3.0]
