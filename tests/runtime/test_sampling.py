"""The choice of the next token: what it is, that it is the same at every tp, and what it exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpspec.axes import Axis
from tpspec.cuts import Extent, cut
from tpspec.errors import TpspecError
from tpspec.layout import Cut
from tpspec.runtime.attach import held_rows
from tpspec.runtime.candidates import candidates, token_ids, values_of
from tpspec.runtime.collectives import Collectives, Counted
from tpspec.runtime.launch import launch
from tpspec.runtime.noise import gumbel
from tpspec.runtime.request import Sampling
from tpspec.runtime.sampling import SITE, Sampler

SIZES = (1, 2, 3, 4, 8)
METHODS = (
    Sampling(),
    Sampling(temperature=0.7, seed=3),
    Sampling(temperature=1.0, top_k=1, seed=3),
    Sampling(temperature=1.3, top_k=40, seed=3),
    Sampling(temperature=1.0, top_p=0.8, seed=-3),
    Sampling(temperature=1.3, top_k=40, top_p=0.7, seed=2**70),
    Sampling(temperature=9.0, top_p=0.99, seed=3),
    Sampling(temperature=30.0, top_p=0.999999, seed=3),
    Sampling(temperature=1.0, top_k=10_000, seed=3),
)


def rows_of(logits: torch.Tensor, cut: Cut, rank: int) -> torch.Tensor:
    """A rank's logits: those of the rows that it holds, and 0 for the rows of zeros."""
    first, count = held_rows(cut, rank)
    padded = torch.zeros(len(logits), cut.length(rank), dtype=logits.dtype)
    padded[:, :count] = logits[:, first : first + count]
    return padded


def chosen(
    tp: int,
    logits: torch.Tensor,
    sampling: Callable[[int], Sampling] | Sampling,
    sequences: Sequence[int] = (),
    step: int = 0,
) -> list[int]:
    """The tokens that every rank of `tp` takes; ranks that differ are a failure."""
    vocabulary = cut(0, [Extent(Axis("vocab", logits.shape[1], pad=True), 1)], tp)

    def target(collectives: Collectives) -> list[int]:
        how = sampling(collectives.rank) if callable(sampling) else sampling
        mine = rows_of(logits, vocabulary, collectives.rank)
        tokens = Sampler(how, collectives, vocabulary).next_tokens(
            mine, sequences or range(len(logits)), step
        )
        same = [theirs.tolist() for theirs in collectives.all_gather(tokens, "test")]
        assert same == [tokens.tolist()] * collectives.size
        return tokens.tolist()

    return launch(tp, target, kind="threads")


def by_definition(logits: torch.Tensor, sampling: Sampling, sequences: Sequence[int], step: int) -> list[int]:
    """The same from all logits at once."""
    if not sampling.temperature:
        return [int(row.float().argmax()) for row in logits]
    tokens = []
    for row, sequence in zip(logits.double() / sampling.temperature, sequences, strict=True):
        order = row.sort(descending=True, stable=True).indices[: sampling.top_k]
        shares = row[order].softmax(0)
        kept = order[shares.cumsum(0) - shares < sampling.top_p]
        noise = gumbel(sampling.seed, [sequence], step, kept)[0]
        tokens.append(int(kept[(row[kept] + noise).argmax()]))
    return tokens


@pytest.mark.parametrize("sampling", METHODS, ids=str)
def test_every_tp_takes_the_token_that_the_method_defines(sampling: Sampling):
    logits = 2 * torch.randn(8, 517, generator=torch.Generator().manual_seed(1)) - 3
    expected = by_definition(logits, sampling, range(8), 5)
    for tp in SIZES:
        assert chosen(tp, logits, sampling, range(8), 5) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_of_equal_logits_the_lowest_token_is_taken(dtype: torch.dtype):
    """Half types have few values, so that ties are common, across ranks too."""
    logits = torch.randn(64, 101, generator=torch.Generator().manual_seed(2)).mul(2).round().to(dtype)
    logits[0] = torch.tensor(-0.0, dtype=dtype)
    logits[0, ::2] = 0.0  # equals -0.0
    for tp in SIZES:
        assert chosen(tp, logits, Sampling()) == by_definition(logits, Sampling(), (), 0)
        assert chosen(tp, logits, Sampling(1.0, top_k=1)) == by_definition(logits, Sampling(), (), 0)


@pytest.mark.parametrize("sampling", METHODS, ids=str)
def test_padding_rows_never_win(sampling: Sampling):
    """Ten tokens on eight ranks, three of which have none; a row of zeros has the logit 0, here the largest.

    (huggingface/text-generation-inference#1463, hpcaitech/ColossalAI#6167)
    """
    logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(4)) - 50
    assert set(chosen(8, logits, sampling)) <= set(range(10))
    assert chosen(8, logits, sampling) == chosen(1, logits, sampling)


@pytest.mark.parametrize("sampling", METHODS, ids=str)
def test_other_seeds_on_other_ranks_do_not_make_them_diverge(sampling: Sampling):
    """(openai/gpt-oss#270, huggingface/transformers#36634)"""
    logits = torch.randn(32, 200, generator=torch.Generator().manual_seed(5))

    def of_rank(rank: int) -> Sampling:
        return Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed=rank)

    chosen(4, logits, of_rank)  # compares the ranks


def test_where_every_rank_has_all_logits_those_of_rank_0_are_taken():
    logits = torch.randn(16, 50, generator=torch.Generator().manual_seed(6))

    def target(collectives: Collectives) -> list[int]:
        mine = logits if collectives.rank == 0 else logits + 0.1 * torch.randn(16, 50)
        return Sampler(Sampling(1.0), collectives, None).next_tokens(mine, range(16), 0).tolist()

    assert launch(3, target, kind="threads") == chosen(1, logits, Sampling(1.0))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0, seed=1), Sampling(0.5, top_k=4, seed=2), Sampling(2.0, top_p=0.7, seed=3)],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling: Sampling):
    row = torch.tensor([0.3, -1.0, 2.0, 1.2, 0.0, -3.0, 1.9])
    scaled = (row.double() / sampling.temperature).sort(descending=True)
    shares = scaled.values[: sampling.top_k].softmax(0)
    kept = shares.cumsum(0) - shares < sampling.top_p
    shares = shares[kept] / shares[kept].sum()
    draws = 20_000
    counts = Counter(chosen(3, row.expand(draws, -1), sampling))
    assert set(counts) == set(scaled.indices[: len(kept)][kept].tolist())
    for token, share in zip(scaled.indices.tolist(), shares.tolist(), strict=False):
        spread = (share * (1 - share) / draws) ** 0.5
        assert abs(counts[token] / draws - share) < 4 * spread


def test_a_greedy_choice_at_tp_8_sends_56_bytes_per_rank_and_sequence():
    def target(collectives: Collectives) -> dict[tuple[str, str], float]:
        counted = Counted(collectives)
        vocabulary = cut(0, [Extent(Axis("vocab", 128256, pad=True), 1)], 8)
        Sampler(Sampling(), counted, vocabulary).next_tokens(torch.zeros(1, 16032), [0], 0)
        return counted.wire_bytes()

    assert launch(8, target, kind="threads") == {("all_gather", SITE): 56}


def test_top_p_asks_for_more_candidates_only_where_the_nucleus_is_wide():
    def target(collectives: Collectives, spread: float) -> int:
        counted = Counted(collectives)
        vocabulary = cut(0, [Extent(Axis("vocab", 4096, pad=True), 1)], 2)
        logits = spread * torch.randn(1, 4096, generator=torch.Generator().manual_seed(7))
        mine = rows_of(logits, vocabulary, collectives.rank)
        Sampler(Sampling(1.0, top_p=0.9), counted, vocabulary).next_tokens(mine, [0], 0)
        return counted.total("all_gather").calls

    assert launch(2, target, (5.0,), kind="threads") == 1
    assert launch(2, target, (0.1,), kind="threads") == 3


@pytest.mark.parametrize("wrong", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("sampling", METHODS[:5], ids=str)
def test_logits_that_are_no_numbers_are_an_error(sampling: Sampling, wrong: float):
    logits = torch.zeros(2, 40)
    logits[1, 30] = wrong
    with pytest.raises(TpspecError, match=r"rank \d: the model's logits are not finite numbers\n.*float32"):
        chosen(2, logits, sampling)


def test_noise_depends_on_seed_sequence_step_and_token_alone():
    tokens = torch.arange(1000)
    noise = gumbel(1, [0, 1], 2, tokens)
    assert torch.equal(gumbel(1, [1], 2, tokens[500:]), noise[1:, 500:])
    assert torch.equal(gumbel(1, [0, 1], 2, torch.stack([tokens, tokens.flip(0)]))[1], noise[1].flip(0))
    others = [gumbel(2, [0], 2, tokens), gumbel(1, [0], 3, tokens), noise[1:], gumbel(-1, [0], 2, tokens)]
    for other in others:
        both = torch.stack([noise[0], other[0]])
        assert torch.corrcoef(both)[0, 1].abs() < 0.15


def test_noise_has_the_gumbel_distribution():
    noise = gumbel(0, range(100), 0, torch.arange(10_000)).flatten()
    below = torch.tensor([-1.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    share = (noise[:, None] < below).double().mean(0)
    torch.testing.assert_close(share, (-(-below).exp()).exp(), atol=2e-3, rtol=0)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20))
def test_candidates_order_by_value_and_then_by_the_lowest_token(values: list[float]):
    ids = torch.arange(len(values))
    keys = candidates(torch.tensor(values), ids)
    best_first = sorted(range(len(values)), key=lambda token: (-values[token], token))
    order = keys.sort(descending=True).values
    assert token_ids(order).tolist() == best_first
    assert values_of(order).tolist() == [values[token] for token in best_first]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": 1e-300}, "temperature 1e-300 is too small; 0 takes the likeliest token"),
        ({"top_k": 0}, "top-k 0"),
        ({"top_p": 0.0}, "top-p 0.0"),
        ({"top_p": 1.5}, "top-p 1.5"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, float], words: str):
    with pytest.raises(TpspecError, match=words):
        Sampling(**wrong)
