"""Plans of published configs: exact bytes beside the simple budget, times, and sentences that are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tpspec.config import read_config
from tpspec.errors import TpspecError
from tpspec.language.registry import spec_named
from tpspec.planning.hardware import find_hardware
from tpspec.planning.plan import make_plan, usual_context
from tpspec.planning.report import PlanReport
from tpspec.planning.sizes import Question
from tpspec.resolve import choose_spec, resolve

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "models" / "Meta-Llama-3-70B" / "config.json"
GIB, KIB, MIB = 2**30, 2**10, 2**20


def planned(path: Path = LLAMA, hardware: str = "h100-sxm", **question: Any) -> PlanReport:
    config = read_config(path)
    pad = question.pop("pad", None)
    resolution = resolve(choose_spec(config), config, None, pad)
    return make_plan("it", resolution, find_hardware(hardware), Question(**question), headers=False)


def published(name: str, **question: Any) -> PlanReport:
    return planned(ROOT / "fixtures" / "configs" / f"{name}.json", **question)


def test_the_parameters_of_a_model_are_all_of_them():
    report = planned()
    layer = 2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192 + 2 * 8192
    assert report.parameters == 80 * layer + 2 * 128256 * 8192 + 8192 == 70_553_706_496
    assert report.weight_bytes == 2 * report.parameters
    assert report.active_parameters == report.parameters - 128256 * 8192  # an embedding is looked up


def test_exact_weights_stand_beside_the_simple_budget():
    by_tp = {size.tp: size for size in planned(sizes=(2, 4, 8, 16)).sizes}
    norms = 161 * 8192 * 2
    kv = 80 * 2 * 1024 * 8192 * 2
    for tp, size in by_tp.items():
        weights = size.weights
        copies = max(1, tp // 8)
        rest = weights.simple * tp - norms - kv
        assert set(weights.ranks) == {weights.exact}
        assert weights.exact == rest / tp + kv * copies / tp + norms
        assert weights.exact == weights.alone + weights.copied + weights.replicated + weights.zeros
        assert (weights.replicated, weights.zeros) == (norms, 0)
        assert weights.copied == (kv // 8 if tp == 16 else 0)
        assert size.exact.pool == 76 * GIB - weights.exact
        assert size.exact.tokens == int(size.exact.pool / (320 * KIB // min(tp, 8)))
    assert [by_tp[tp].exact.tokens for tp in (2, 4, 8, 16)] == [67439, 565497, 1561612, 1772825]
    assert [by_tp[tp].simple.tokens for tp in (2, 4, 8, 16)] == [67447, 565521, 1561668, 1776981]
    assert by_tp[16].exact.sequences == 216
    assert by_tp[16].copies == {"kv": 2}


def test_the_collectives_of_a_pass():
    (size,) = planned(sizes=(8,)).sizes
    assert [(call.collective, call.site, call.calls, call.payload) for call in size.calls] == [
        ("all_reduce", "model.embed_tokens", 1, 16 * KIB),
        ("all_reduce", "model.layers.0-79.self_attn.o_proj", 80, 80 * 16 * KIB),
        ("all_reduce", "model.layers.0-79.mlp.down_proj", 80, 80 * 16 * KIB),
        ("all_gather", "next token", 1, 8),
    ]
    assert size.all_reduces == 161
    assert size.wire_per_token == 161 * 2 * 7 / 8 * 16 * KIB
    assert (size.logits.gathered, size.logits.exchange_wire) == (250.5 * KIB, 56)
    assert size.logits.gather_wire == pytest.approx(219 * KIB, rel=1e-3)


def test_the_time_of_a_step_is_its_parts():
    (size,) = planned(sizes=(8,), batches=(1, 256), context=8192).sizes
    for step in size.steps:
        read = size.weights.exact - 128256 * 8192 * 2 / 8
        assert step.weight_bytes == read
        assert step.floor == pytest.approx(read / 3.35e12)
        assert step.cache == pytest.approx(step.batch * 8192 * 40 * KIB / 3.35e12)
        assert step.wire == pytest.approx(step.batch * (size.wire_per_token + 56) / 450e9)
        assert step.latency == pytest.approx(162 * 5e-6)
        assert step.seconds == step.floor + step.cache + step.wire + step.latency
    one, many = size.steps
    assert one.floor == pytest.approx(5.19e-3, rel=1e-3)
    assert one.wire_share == pytest.approx(0.00198, rel=0.01)
    assert many.wire_share == pytest.approx(0.506, rel=0.01)
    assert size.intensity == pytest.approx(3764, rel=1e-3)


def test_ranks_of_several_nodes_meet_over_the_slower_link():
    eight, sixteen = planned(sizes=(8, 16), batches=(1,)).sizes
    assert (eight.across_nodes, sixteen.across_nodes) == (False, True)
    assert sixteen.steps[0].wire == pytest.approx((sixteen.wire_per_token + 120) / 50e9)
    assert sixteen.steps[0].latency == pytest.approx(162 * 20e-6)


def test_a_tied_embedding_is_read_as_the_head():
    report = published("Llama-3.2-1B", sizes=(1,))
    assert report.active_parameters == report.parameters


def test_a_batch_reads_the_experts_that_it_uses():
    """Qwen3-30B-A3B: 48 layers of 128 experts, 8 a token, 3 matrices of 768 × 2048 each."""
    report = published("Qwen3-30B-A3B", sizes=(1,), batches=(1, 16, 4096))
    experts = 48 * 3 * 768 * 2048 * 2
    one, some, all_of_them = report.sizes[0].steps
    assert one.weight_bytes == pytest.approx(all_of_them.weight_bytes - 120 * experts)
    assert some.weight_bytes - one.weight_bytes == pytest.approx(
        (128 * (1 - (120 / 128) ** 16) - 8) * experts
    )
    assert report.active_parameters == pytest.approx(3.04e9, rel=5e-3)


def test_padding_counts_as_weight_and_cache():
    report = planned(sizes=(6,), pad="kv")
    (size,) = report.sizes
    assert size.padding["kv"] == (8, 12)
    assert size.padding["ffn"] == (28672, 28674)
    assert size.weights.exact > 1.04 * size.weights.simple
    assert size.weights.zeros > 0.04 * size.weights.exact
    assert size.cache.per_token == 80 * 2 * 2 * 128 * 2


def test_a_size_that_does_not_fit_is_told_beside_those_that_do():
    report = planned(sizes=(6, 8))
    assert [size.tp for size in report.sizes] == [8]
    (refused,) = report.refused
    assert refused.tp == 6
    assert "num_attention_heads = 64: 64 % 6 = 4" in refused.reasons[0]


def test_where_no_size_fits_the_model_it_is_refused():
    with pytest.raises(TpspecError, match="tp=6 does not fit"):
        planned(sizes=(6, 12))


def texts(report: PlanReport, kind: str) -> list[str]:
    return [advice.text for advice in report.advice if advice.kind == kind]


def test_advice_names_where_the_cache_stops_to_grow():
    grows, stops = texts(planned(sizes=(2, 4, 8, 16)), "cache")
    assert grows.startswith("tp=4 holds 8.4× the tokens of tp=2 for 2× the devices")
    assert stops == (
        "tp=16 adds 14% KV tokens over tp=8 for 2× the devices: its 8 KV heads are used up; "
        "2 replicas at tp=8 hold 2.0×."
    )


def test_advice_says_that_a_compressed_cache_does_not_get_smaller():
    (stops,) = texts(published("DeepSeek-V3", sizes=(8, 16), hardware="h200-sxm"), "cache")
    assert "a rank's cache is the same at both, whole on every rank" in stops


def test_advice_says_that_padded_heads_take_room():
    (stops,) = texts(planned(sizes=(4, 6), pad="kv"), "cache")
    assert "for 1.5× the devices: its 8 KV heads are filled up to 12" in stops
    assert "replicas" not in stops


def test_heads_that_are_filled_up_are_not_called_used_up():
    report = planned(sizes=(8, 12), pad="kv")
    (stops,) = texts(report, "cache")
    assert "its 8 KV heads are filled up to 12" in stops
    assert report.sizes[1].copies == {}


def test_what_is_no_more_than_a_share_is_not_remarked():
    assert not any("0.00%" in text for text in texts(planned(sizes=(2,)), "weights"))


@pytest.mark.parametrize(
    ("hardware", "reach"),
    [
        ("h100-sxm", "up to tp=12 inside a node; tp=2 across nodes."),
        ("l4", "up to tp=7 inside a node, fewer than its 8 devices; tp=3 across nodes."),
    ],
)
def test_ranks_that_the_link_feeds_are_whole_ones(hardware, reach):
    assert texts(planned(hardware=hardware, sizes=(8,)), "speed")[-1].endswith(reach)


def test_a_model_too_small_for_any_link_gets_no_advice_about_links():
    report = planned(ROOT / "models" / "stories260k" / "config.json")
    assert report.links[0].break_even < 2
    assert not any("link" in advice.text for advice in report.advice)


def test_advice_names_where_more_ranks_do_not_help_a_step():
    stops, _ = texts(planned(sizes=(8, 16), batches=(1,)), "speed")
    assert stops.startswith("At batch 1, a step at tp=16 is no faster than at tp=8")
    assert "which leave the node of 8" in stops


def test_advice_says_where_the_weights_fit():
    assert texts(planned(sizes=(1, 2)), "fit")[0].startswith(
        "tp=2 is the least for the weights: 65.7 GiB of the 76"
    )
    assert texts(planned(sizes=(1,)), "fit")[0].startswith("The weights fit at none of these sizes: at tp=1")


@pytest.mark.parametrize(
    "name", ["Meta-Llama-3-70B", "gemma-3-27b-it", "Jamba-v0.1", "gpt2", "Qwen3-30B-A3B"]
)
def test_every_percentage_of_the_cache_advice_is_the_report_s(name):
    report = published(name)
    tokens = {size.tp: size.exact.tokens for size in report.sizes}
    for text in texts(report, "cache"):
        if match := re.match(r"tp=(\d+) adds (\d+)% KV tokens over tp=(\d+)", text):
            more, percent, less = map(int, match.groups())
            assert percent == round(100 * (tokens[more] / tokens[less] - 1))
        elif match := re.match(r"tp=(\d+) holds ([\d.]+)× the tokens of tp=(\d+)", text):
            more, times, less = int(match[1]), float(match[2]), int(match[3])
            assert times == pytest.approx(tokens[more] / tokens[less], abs=0.05)


def test_choices_use_all_devices_and_the_best_is_first():
    report = planned(gpus=16, context=8192, batch=64)
    assert [(c.replicas, c.tp) for c in report.choices] == [(2, 8), (4, 4), (1, 16), (8, 2), (16, 1)]
    assert all(c.replicas * c.tp + c.idle == 16 for c in report.choices)
    rates = [c.tokens_per_second for c in report.choices]
    assert rates == sorted(rates, reverse=True)
    best, last = report.choices[0], report.choices[-1]
    assert (best.running, best.sequences) == (64, 380)
    assert best.tokens_per_second == pytest.approx(64 / best.step)
    assert not last.fits
    (said,) = texts(report, "choice")
    assert said.startswith(
        "2 × tp=8 decodes 64 sequences of 8192 tokens at 6715 tokens/s, 52% more than 4 × tp=4"
    )


def test_too_few_devices_are_told_how_many_would_do():
    assert texts(planned(gpus=1), "choice") == [
        "1 device does not hold the weights and a sequence of 8192 tokens; at least 2 do."
    ]
    report = planned(sizes=(1,), gpus=16)
    assert texts(report, "choice") == [
        "None of these sizes holds the weights and a sequence of 8192 tokens; tp=2 is the least that does."
    ]
    assert [choice.tp for choice in report.choices] == [1]
    assert texts(planned(sizes=(8,), gpus=4), "choice") == ["None of these sizes is for 4 devices."]


def test_sizes_are_those_of_the_choices_where_none_are_asked_for():
    assert [size.tp for size in planned(gpus=4).sizes] == [1, 2, 4]
    assert [size.tp for size in planned(gpus=6, pad="kv").sizes] == [1, 2, 3, 6]


def test_advice_on_speed_is_of_batches_that_fit():
    report = planned(sizes=(2, 16), batches=(1, 256))
    assert report.sizes[0].why_not(256) == "holds 8 sequences"
    assert not any("batch 256" in text for text in texts(report, "speed"))


def test_a_choice_that_cannot_run_the_batch_at_once_comes_after_those_that_can():
    report = planned(gpus=16, context=32768, batch=256)
    running = [choice.running for choice in report.choices]
    assert max(running) < 256 or running[0] == 256
    assert report.choices[-1].running == 0


def test_what_the_config_cannot_say_is_said_in_words():
    notes = " ".join(published("DeepSeek-V3", sizes=(8,)).notes)
    assert "(F8_E4M3, BF16) are what specs/deepseek_v3.yaml makes of the config" in notes
    assert "the format's input scales and orders" in notes


def test_a_block_that_layers_share_is_counted_once_and_named_where_a_checkpoint_may_repeat_it():
    spec = spec_named("zamba")
    resolution = resolve(spec, {**spec.tiny, "model_type": "zamba"})
    report = make_plan("it", resolution, find_hardware("l4"), Question(sizes=(1,)), headers=False)
    (note,) = (note for note in report.notes if "a checkpoint may lack them" in note)
    assert "model.layers.2.shared_transf.self_attn.q_proj" in note
    assert "model.layers.1." not in note
    assert report.parameters == 89984  # what transformers stores


@pytest.mark.parametrize(("positions", "context"), [(4096, 4096), (None, 8192), (131072, 8192)])
@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions", "max_seq_len"])
def test_the_usual_context_is_no_longer_than_the_model_s(name, positions, context):
    assert usual_context({name: positions}, 8192) == context


def test_a_context_that_the_model_has_no_positions_for_is_remarked():
    said = "sequences of 5000 tokens are longer than the 1024 positions of the config"
    assert said in published("gpt2", context=5000).notes
    assert not any("positions" in note for note in published("gpt2", context=1024).notes)


def test_weights_in_float32_are_said_to_be_half_in_bfloat16():
    report = published("gemma-2-9b", sizes=(1,))
    assert texts(report, "weights")[0] == (
        "Most of its weights are in float32: in bfloat16 they take 17.2 GiB in place of 34.4 GiB; "
        "plan that with --dtype bfloat16."
    )
    assert "the rate of arithmetic is that of bfloat16; in float32 it is lower" in report.notes


@pytest.mark.parametrize("said", [{}, {"torch_dtype": None}, {"dtype": "banana"}, {"torch_dtype": 16}])
def test_an_element_type_that_the_config_does_not_say_is_an_assumption(said):
    config = {k: v for k, v in read_config(LLAMA).items() if k != "torch_dtype"} | said
    resolution = resolve(choose_spec(config), config)
    report = make_plan("it", resolution, find_hardware("l4"), Question(sizes=(8,)), headers=False)
    assert "element type not in the config: bfloat16 assumed" in report.notes
    assert not any("assumed" in note for note in planned(sizes=(8,)).notes if "element" in note)


def test_a_quantized_checkpoint_s_parameters_are_the_model_s():
    """gpt-oss-120b stores its experts in MXFP4: two to a byte, and a scale for each 32."""
    report = published("gpt-oss-120b", sizes=(1,))
    assert report.parameters == pytest.approx(116.8e9, rel=2e-3)
    assert report.weight_bytes == pytest.approx(65.25e9, rel=2e-3)
    assert report.active_parameters == pytest.approx(5.1e9, rel=0.02)


def test_weights_in_fp8_multiply_at_the_rate_of_fp8():
    (size,) = published("DeepSeek-V3", sizes=(8,), hardware="h200-sxm", batches=(1,)).sizes
    (step,) = size.steps
    assert step.compute == pytest.approx(
        2 * 36.6e9 / 8 / 1979e12, rel=0.25
    )  # and what is whole on every rank
