"""Which units are padded, how many slots that takes, and where each unit goes."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tpspec.axes import Axis, held_units, shares
from tpspec.cache import cache_size
from tpspec.cuts import Extent, cut, joined
from tpspec.errors import TpspecError
from tpspec.language.registry import spec_for
from tpspec.layout import Segment, Share
from tpspec.padding import Order, Pair, Slots, slots
from tpspec.resolve import choose_spec, resolve, resolve_fitting

MODELS = Path(__file__).parents[1] / "models"
LLAMA_70B = json.loads((MODELS / "Meta-Llama-3-70B" / "config.json").read_text())


@st.composite
def heads(draw: st.DrawFn) -> tuple[Pair, int]:
    """1 to 96 query heads on a divisor of them KV heads, weights of several proportions, and a tp."""
    queries = draw(st.integers(1, 96))
    groups = draw(st.sampled_from([n for n in range(1, queries + 1) if queries % n == 0]))
    rows = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    order: Order = draw(st.sampled_from(["kv", "weights"]))
    copied, multiple, full = draw(st.booleans()), draw(st.sampled_from([1, 1, 1, 2])), draw(st.booleans())
    pair = Pair(groups, queries // groups, *rows, copied=copied, multiple=multiple, order=order, full=full)
    assume(pair.takes(1))
    return pair, draw(st.integers(1, 16))


def axes(pair: Pair) -> tuple[Axis, Axis]:
    kv = Axis("kv", pair.groups, replicate=pair.copied, pad=True, pair=pair, leads=True)
    return Axis("q", pair.groups * pair.members, pad=True, pair=pair), kv


@given(heads())
def test_the_choice_is_the_cheapest_of_all(case: tuple[Pair, int]) -> None:
    pair, tp = case
    costs = {}
    for per_rank, copies in itertools.product(
        range(1, pair.groups * pair.members + 1), range(1, pair.members + 1)
    ):
        if copies * pair.groups <= tp * per_rank and (pair.copied or copies == 1):
            members = math.ceil(math.ceil(pair.members / copies) / pair.multiple) * pair.multiple
            if pair.full and members * copies != pair.members:
                continue
            rows = per_rank * (pair.group_rows + members * pair.member_rows)
            cost = (per_rank, rows) if pair.order == "kv" else (rows, per_rank)
            costs[Slots(per_rank, copies, members)] = (*cost, copies)
    assert slots(pair, tp) == min(costs, key=costs.__getitem__)


@given(heads())
def test_what_divides_is_not_padded(case: tuple[Pair, int]) -> None:
    pair, tp = replace(case[0], multiple=1), case[1]
    for axis in axes(pair):
        plain = Axis(axis.name, axis.units, replicate=axis.replicate)
        q = pair.groups * pair.members
        if q % tp == 0 and (pair.groups % tp == 0 or (pair.copied and tp % pair.groups == 0)):
            assert shares(axis, tp) == shares(plain, tp)


@given(heads())
def test_every_head_is_held_by_the_slot_of_its_group(case: tuple[Pair, int]) -> None:
    pair, tp = case
    per_rank, copies, members = slots(pair, tp)
    q, kv = axes(pair)
    held: Counter[tuple[str, int]] = Counter()
    for rank in range(tp):
        queries, groups = held_units(q, tp, rank), held_units(kv, tp, rank)
        assert (len(groups), len(queries)) == (per_rank, per_rank * members)
        for number, query in enumerate(queries):
            assert query is None or query // pair.members == groups[number // members]
        held.update(("q", query) for query in queries if query is not None)
        held.update(("kv", group) for group in groups if group is not None)
    assert held == {
        **{("q", head): 1 for head in range(q.units)},
        **{("kv", head): copies for head in range(kv.units)},
    }


@given(heads())
def test_no_slot_of_a_full_pair_holds_zeros_beside_a_head(case: tuple[Pair, int]) -> None:
    """Attention over real values is no zero, so that zeros would have to be what it is multiplied with."""
    pair, tp = replace(case[0], full=True), case[1]
    assume(pair.takes(1))
    q, kv = axes(pair)
    members = slots(pair, tp).members
    for rank in range(tp):
        queries = held_units(q, tp, rank)
        for number, group in enumerate(held_units(kv, tp, rank)):
            in_slot = queries[number * members : (number + 1) * members]
            assert all((query is None) == (group is None) for query in in_slot)


def test_a_full_pair_whose_heads_make_no_whole_packs_does_not_fit() -> None:
    q, _ = axes(Pair(4, 3, multiple=2, full=True))
    assert q.misfit(3) == "3 % 2 = 1"


@given(st.integers(1, 300), st.integers(1, 16), st.sampled_from([1, 8, 32]))
def test_a_plain_axis_is_filled_up_to_whole_groups(units: int, tp: int, multiple: int) -> None:
    axis = Axis("ffn", units, pad=True, multiple=multiple)
    local = axis.local(tp)
    assert local % multiple == 0
    assert (local - multiple) * tp < units <= local * tp
    held = [unit for rank in range(tp) for unit in held_units(axis, tp, rank)]
    assert [unit for unit in held if unit is not None] == list(range(units))


@given(heads(), st.integers(1, 3))
def test_a_fused_matrix_is_padded_within_each_group(case: tuple[Pair, int], width: int) -> None:
    """[q q k v | q q k v]: a padded group has its zero queries before its key."""
    pair, tp = case
    q, kv = axes(pair)
    parts = [Extent(q, width), Extent(kv, width), Extent(kv, width)]
    stride = (pair.members + 2) * width
    for rank, share in enumerate(cut(0, parts, tp, interleaved=kv).shares):
        expected: list[int | None] = []
        members = len(held_units(q, tp, rank)) // len(held_units(kv, tp, rank))
        for number, group in enumerate(held_units(kv, tp, rank)):
            queries = held_units(q, tp, rank)[number * members : (number + 1) * members]
            starts = [
                *(None if unit is None else group * stride + unit % pair.members * width for unit in queries),
                *(None if group is None else group * stride + (pair.members + i) * width for i in (0, 1)),
            ]
            expected += [None if s is None else s + i for s in starts for i in range(width)]
        assert indices(share) == expected


@given(heads(), st.booleans())
def test_a_padded_model_is_cut_without_padding_into_the_same_shards(
    case: tuple[Pair, int], interleaved: bool
) -> None:
    """What `tpspec pad` writes, cut by anyone, is what `tpspec convert --pad` writes."""
    pair, tp = case
    q, kv = axes(pair)
    padded_q, padded_kv = (Axis(axis.name, tp * axis.local(tp)) for axis in (q, kv))
    parts, padded_parts = (
        [Extent(members, 2), Extent(groups, 2), Extent(groups, 1)]
        for members, groups in ((q, kv), (padded_q, padded_kv))
    )
    whole = joined(0, parts, tp, interleaved=kv if interleaved else None)
    padded = cut(0, padded_parts, tp, interleaved=padded_kv if interleaved else None)
    units = indices(whole.shares[0])
    assert len(units) == padded.size
    for rank, share in enumerate(cut(0, parts, tp, interleaved=kv if interleaved else None).shares):
        assert [units[i or 0] for i in indices(padded.shares[rank])] == indices(share)


def indices(share: Share | None) -> list[int | None]:
    return [None if source is None else source + i for source, length in share or () for i in range(length)]


def test_28_heads_on_4_kv_heads_become_32_for_8_ranks() -> None:
    q, kv = axes(Pair(4, 7))
    assert slots(Pair(4, 7), 8) == Slots(1, 2, 4)
    assert shares(q, 8)[1] == (Segment(4, 3), Segment(None, 1))
    assert [share[0].source for share in shares(kv, 8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_9_heads_on_3_kv_heads_get_a_group_of_zeros_for_2_ranks() -> None:
    q, kv = axes(Pair(3, 3))
    assert shares(kv, 2)[1] == (Segment(2, 1), Segment(None, 1))
    assert shares(q, 2)[1] == (Segment(6, 3), Segment(None, 3))


@pytest.mark.parametrize(("order", "heads", "kib"), [("kv", (16, 2), 80), ("weights", (12, 3), 120)])
def test_llama_70b_for_6_ranks_is_cheaper_in_cache_or_in_weights(
    order: Order, heads: tuple[int, int], kib: int
) -> None:
    resolution = resolve(spec_for(["llama"]), LLAMA_70B, pad=order)
    scope = resolution.scope(6)
    assert (scope.axis("q").local(6), scope.axis("kv").local(6)) == heads
    assert 2 * cache_size(resolution.spec, LLAMA_70B, 6, resolution.pad).per_token == kib << 10


def test_absurd_counts_take_no_time() -> None:
    """A config may say anything."""
    for order in ("kv", "weights"):
        pair = Pair(2**40, 2**20, order=order)
        for axis in axes(pair):
            assert sum(length for share in shares(axis, 6) for _, length in share) == 6 * axis.local(6)
    assert slots(Pair(1, 2**40), 3).members == -(-(2**40) // 3)


def test_a_refusal_of_what_cannot_be_padded_names_the_sizes_that_do_without() -> None:
    """Two heads of 32 columns to a KV head are half a group of 128, which no zeros fill up."""
    config = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}  # fmt: skip
    spec = spec_for(["llama"])
    with pytest.raises(TpspecError) as refused:
        resolve_fitting(spec, config, None, 2, "kv")
    assert refused.value.remedy == "valid tp: 1"
    assert resolve_fitting(spec, config, None, 1, "kv").pad is None


def test_a_quantized_head_is_padded_to_whole_packs() -> None:
    """128 rows are 43 for each of three ranks, and 48 in packs of 8; the embedding is cut alike."""
    config = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 1,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32, "vocab_size": 128,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "lm_head": True},
    }  # fmt: skip
    padding = resolve(spec_for(["llama"]), config, pad="kv")
    assert padding.fits(3)
    held = {axis.local(3) for item in padding.shared for axis in item.sharing.axes if axis.name == "vocab"}
    assert held == {48}


def test_columns_that_are_an_odd_number_of_groups_get_the_groups_that_the_ranks_lack() -> None:
    """Qwen2.5-72B in GPTQ: 29568 columns are 231 groups of 128; eight ranks hold 29 each."""
    config = json.loads((MODELS.parent / "fixtures" / "configs" / "Qwen2.5-72B.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    spec = choose_spec(config)
    assert not resolve(spec, config).fits(8)
    padded = resolve(spec, config, pad="kv")
    assert padded.fits(8)
    assert padded.scope(8).axis("ffn", {}).local(8) == 29 * 128
