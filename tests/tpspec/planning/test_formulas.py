"""Every figure of Llama-3-70B that is worked out by hand: the formulas alone, from round numbers.

The weights count as 131 GiB, simply divided by tp, and the parameters as 70 billion.
"""

from __future__ import annotations

import pytest

from tpspec.planning import formulas

GIB, KIB, MIB = 2**30, 2**10, 2**20
WEIGHTS = 131 * GIB
PARAMETERS = 70e9
LAYERS, HIDDEN, VOCABULARY = 80, 8192, 128256
HBM, RESERVE, BANDWIDTH = 80 * GIB, 4 * GIB, 3.35e12
NVLINK, INFINIBAND, FLOPS = 450e9, 50e9, 989.4e12
PER_TOKEN = {tp: 320 * KIB // min(tp, 8) for tp in (2, 4, 8, 16, 32)}
ALL_REDUCES = 2 * LAYERS
PAYLOAD = ALL_REDUCES * HIDDEN * 2
"""Bytes that a rank gives to the all-reduces of one token."""


def tokens(tp: int) -> float:
    pool = formulas.pool(HBM, RESERVE, WEIGHTS / tp)
    return formulas.sequences(pool, PER_TOKEN[tp])


def floor(tp: int, weights: float = WEIGHTS) -> float:
    return formulas.floor_seconds(weights / tp, BANDWIDTH)


def wire(tp: int) -> float:
    return formulas.all_reduce_wire(PAYLOAD, tp)


@pytest.mark.parametrize(("tp", "held"), [(2, 68.8e3), (4, 567e3), (8, 1.56e6), (16, 1.78e6)])
def test_the_tokens_of_a_pool(tp, held):
    assert tokens(tp) == pytest.approx(held, rel=2e-3)


def test_what_twice_the_ranks_add_to_the_tokens():
    assert tokens(4) / tokens(2) == pytest.approx(8.24, rel=1e-3)
    assert tokens(16) / tokens(8) == pytest.approx(1.14, rel=3e-3)


def test_the_bytes_of_a_token_s_all_reduces():
    assert PAYLOAD / ALL_REDUCES == 16 * KIB
    assert wire(8) == 4.375 * MIB
    assert wire(8) / NVLINK == pytest.approx(10.19e-6, rel=1e-3)


def test_the_floor_of_a_decode_step():
    embedding = VOCABULARY * HIDDEN * 2
    assert floor(8) == pytest.approx(5.25e-3, rel=1e-3)
    assert floor(8, WEIGHTS - embedding) == pytest.approx(5.17e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("tp", "batch", "share"),
    [(8, 1, 0.00194), (8, 256, 0.497), (32, 256, 2.20)],  # 49.7 %: 2609.8 µs of 5248.5
)
def test_the_link_s_part_of_the_floor(tp, batch, share):
    assert batch * wire(tp) / NVLINK / floor(tp) == pytest.approx(share, rel=2e-3)


def test_the_latency_s_part_of_the_floor():
    assert ALL_REDUCES * 5e-6 / floor(8) == pytest.approx(0.15, abs=0.005)
    assert ALL_REDUCES * 10e-6 / floor(8) == pytest.approx(0.30, abs=0.006)
    assert floor(8) / ALL_REDUCES == pytest.approx(32.8e-6, rel=1e-3)


def test_arithmetic_against_the_link():
    assert formulas.intensity(PARAMETERS, wire(8), 8) == pytest.approx(3815, rel=1e-3)
    assert formulas.balance(FLOPS, NVLINK) == pytest.approx(2199, rel=1e-3)
    assert formulas.balance(FLOPS, INFINIBAND) == pytest.approx(19788, rel=1e-4)


def test_the_tp_at_which_the_link_takes_as_long_as_the_arithmetic():
    inside = formulas.break_even_tp(PARAMETERS, PAYLOAD, formulas.balance(FLOPS, NVLINK))
    across = formulas.break_even_tp(PARAMETERS, PAYLOAD, formulas.balance(FLOPS, INFINIBAND))
    assert inside == pytest.approx(13, abs=0.2)
    assert across == pytest.approx(2.35, abs=0.005)
    balance = formulas.balance(FLOPS, NVLINK)
    assert formulas.intensity(PARAMETERS, formulas.all_reduce_wire(PAYLOAD, inside), inside) == pytest.approx(
        balance
    )


def test_logits_gathered_against_candidates_exchanged():
    part = VOCABULARY // 8 * 2
    assert 8 * part == 250.5 * KIB
    assert formulas.all_gather_wire(part, 8) == pytest.approx(219 * KIB, rel=1e-3)
    assert formulas.exchange_wire(8) == 56


@pytest.mark.parametrize("tp", [1, 2, 5, 8])
def test_a_ring_sends_what_its_steps_send(tp):
    """An all-reduce is a reduce-scatter and an all-gather of p-1 steps, each of one p-th."""
    payload = 1000.0
    assert formulas.all_reduce_wire(payload, tp) == pytest.approx(2 * (tp - 1) * payload / tp)
    assert formulas.all_gather_wire(payload / tp, tp) == pytest.approx((tp - 1) * payload / tp)
    assert formulas.broadcast_wire(payload, tp) == pytest.approx((tp - 1) * payload / tp)


def test_a_batch_uses_more_experts_and_at_last_all():
    assert formulas.distinct_experts(256, 8, 1) == pytest.approx(8)
    assert formulas.distinct_experts(256, 8, 2) == pytest.approx(8 + 8 * 248 / 256)
    assert formulas.distinct_experts(256, 8, 10_000) == pytest.approx(256)
    assert formulas.distinct_experts(4, 4, 1) == 4
