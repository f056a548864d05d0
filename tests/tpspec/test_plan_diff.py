"""A tensor-parallel plan of transformers beside a spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from llama_plan import LLAMA, PLAN

from tpspec.config import read_config
from tpspec.errors import TpspecError
from tpspec.plan_diff import Difference, PlanDiff, diff_plan
from tpspec.resolve import choose_spec, resolve

HIDDEN, FFN, VOCAB, BF16 = 8192, 28672, 128256, 2


def compared(plan: Mapping[str, str], tp: int = 8, **config: object) -> PlanDiff:
    values = LLAMA | config
    return diff_plan(resolve(choose_spec(values), values), plan, tp)


def only(diff: PlanDiff) -> Difference:
    (difference,) = diff.differences
    return difference


def test_a_plan_like_the_spec_differs_in_gathered_logits_alone() -> None:
    difference = only(compared(PLAN))
    assert difference.module == "lm_head"
    assert (difference.rank_bytes, difference.token_bytes) == (0, VOCAB * BF16)


def test_a_module_that_the_plan_leaves_out_is_whole_on_every_rank() -> None:
    plan = {name: style for name, style in PLAN.items() if name not in ("lm_head", "layers.*.mlp.down_proj")}
    down, head = compared(plan).differences[:2]
    assert (down.module, down.count) == ("model.layers.0-79.mlp.down_proj", 80)
    assert down.rank_bytes == 80 * HIDDEN * FFN * BF16 * 7 // 8
    assert down.token_bytes == -80 * HIDDEN * BF16  # whole matrices need no all-reduce
    assert (head.module, head.rank_bytes) == ("lm_head", HIDDEN * VOCAB * BF16 * 7 // 8)


def test_a_tied_head_is_not_counted_beside_its_embedding() -> None:
    plan = {name: style for name, style in PLAN.items() if name not in ("lm_head", "embed_tokens")}
    embedding, head = compared(plan, tie_word_embeddings=True).differences
    assert (embedding.rank_bytes, head.rank_bytes) == (HIDDEN * VOCAB * BF16 * 7 // 8, 0)


def test_a_tied_head_gathers_its_logits_too() -> None:
    difference = only(compared(PLAN, tie_word_embeddings=True))
    assert (difference.module, difference.token_bytes) == ("lm_head", VOCAB * BF16)


def test_an_output_that_is_gathered_costs_its_width_for_each_token() -> None:
    plan = PLAN | {"layers.*.mlp.up_proj": "colwise_gather_output"}
    (up,) = (d for d in compared(plan).differences if "up_proj" in d.module)
    assert (up.says, up.token_bytes) == ("the output is gathered on every rank", 80 * FFN * BF16)


def test_more_ranks_than_kv_heads_split_heads_under_a_plain_cut() -> None:
    found = {d.module.rpartition(".")[2]: d for d in compared(PLAN, tp=16).differences}
    assert found.keys() == {"k_proj", "v_proj", "lm_head"}
    assert "rank 0 gets 0:64, not 0:128" in found["k_proj"].says
    assert found["k_proj"].rank_bytes == -80 * 64 * HIDDEN * BF16


def test_a_plain_cut_through_fused_parts_is_told_from_a_packed_one() -> None:
    config = {"model_type": "phi3", "num_key_value_heads": 64, "pad_token_id": 0}
    fused, head = "layers.*.mlp.gate_up_proj", {"lm_head": "colwise_gather_output"}

    def of_mlp(style: str) -> list[Difference]:
        return [d for d in compared(head | {fused: style}, 2, **config).differences if "gate_up" in d.module]

    (plain,) = of_mlp("colwise")
    half = FFN // 2
    assert f"rank 0 gets 0:{FFN}, not 0:{half} {FFN}:{FFN + half}" in plain.says
    assert not of_mlp("packed_colwise")


def test_experts_that_memory_packs_are_each_cut_as_the_packed_style_cuts_them() -> None:
    config = {"model_type": "mixtral", "num_local_experts": 4, "num_hidden_layers": 2}
    plan = PLAN | {
        "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "layers.*.mlp.experts.down_proj": "rowwise",
        "layers.*.mlp.experts": "moe_tp_experts",
    }
    assert only(compared(plan, **config)).module == "lm_head"


def test_parallel_residuals_meet_once_in_the_spec_and_twice_in_the_plan() -> None:
    config = {"model_type": "cohere", "tie_word_embeddings": True}
    found = [d for d in compared(PLAN, **config).differences if "all-reduce" in d.says]
    assert [(d.module, d.token_bytes) for d in found] == [
        ("model.layers.0-79.self_attn.o_proj", 80 * HIDDEN * BF16)
    ]


def test_a_width_that_does_not_divide_is_named_with_its_remainder() -> None:
    found = compared(PLAN, tp=4, vocab_size=102)
    says = [d.says for d in found.differences if d.module == "model.embed_tokens"]
    assert says == ["a plain cut does not divide: 102 % 4 = 2"]


def test_patterns_that_name_nothing_are_told() -> None:
    assert compared(PLAN | {"layers.*.mlp.w1": "colwise"}).unmatched == ("layers.*.mlp.w1",)


def test_a_style_that_is_not_known_is_refused() -> None:
    with pytest.raises(TpspecError, match="styles that are not known") as caught:
        compared(PLAN | {"layers.*.mlp.up_proj": "diagonal"})
    assert caught.value.findings[0].subject == "layers.*.mlp.up_proj"


def test_a_matrix_cut_the_other_way_is_told() -> None:
    plan = PLAN | {"layers.*.self_attn.o_proj": "colwise"}
    (o_proj,) = (d for d in compared(plan).differences if "o_proj" in d.module)
    assert o_proj.says.startswith("cut the other way")
    assert o_proj.rank_bytes == 0


def test_tensors_of_one_module_are_told_apart() -> None:
    """gpt-oss stores its experts as blocks and scales."""
    values = read_config(Path(__file__).parents[1] / "fixtures" / "configs" / "gpt-oss-120b.json")
    modules = [d.module for d in diff_plan(resolve(choose_spec(values), values), {}, 2).differences]
    assert len(set(modules)) == len(modules)
    assert "model.layers.0-35.mlp.experts.down_proj_scales" in modules
