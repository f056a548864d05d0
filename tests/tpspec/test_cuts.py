"""The laws of cutting, for every kind of part, width, number of ranks and padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpspec.axes import Axis, shares
from tpspec.cuts import Extent, cut, scale
from tpspec.layout import Cut, Segment, once, whole
from tpspec.padding import Pair

TP = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16])


@st.composite
def dividing_axes(draw: st.DrawFn, tp: int) -> Axis:
    """An axis that tp divides, or whose units are copied, or that is padded, alone or with another."""
    kind = draw(st.sampled_from(["divides", "copied", "padded", "paired"]))
    if kind == "divides":
        return Axis("a", tp * draw(st.integers(1, 4)))
    if kind == "copied":
        return Axis("c", draw(st.sampled_from([n for n in range(1, tp + 1) if tp % n == 0])), replicate=True)
    if kind == "paired":
        pair, leads = Pair(draw(st.integers(1, 12)), draw(st.integers(1, 8))), draw(st.booleans())
        units = pair.groups if leads else pair.groups * pair.members
        return Axis("h", units, replicate=leads, pad=True, pair=pair, leads=leads)
    return Axis("p", draw(st.integers(1, 40)), pad=True)


@st.composite
def fused(draw: st.DrawFn) -> tuple[int, list[Extent], int]:
    tp = draw(TP)
    parts = [Extent(draw(dividing_axes(tp)), draw(st.integers(1, 5))) for _ in range(draw(st.integers(1, 4)))]
    parts += [Extent(None, draw(st.integers(1, 6)))] * draw(st.integers(0, 1))
    return tp, parts, draw(st.integers(1, 3))


def shard(array: np.ndarray, share: tuple[Segment, ...]) -> np.ndarray:
    """The obvious way to take a rank's piece of dimension 0."""
    pieces = [
        np.zeros((n, *array.shape[1:]), array.dtype) if source is None else array[source : source + n]
        for source, n in share
    ]
    return np.concatenate(pieces) if pieces else array[:0]


def merge(pieces: list[np.ndarray], shared: Cut) -> np.ndarray:
    """The obvious way back: every source index from some rank that holds it."""
    merged = np.full((shared.size, *pieces[0].shape[1:]), -1, pieces[0].dtype)
    for piece, share in zip(pieces, shared.shares, strict=True):
        position = 0
        for source, n in share or ():
            if source is not None:
                merged[source : source + n] = piece[position : position + n]
            position += n
    return merged


@given(fused())
def test_merging_the_shards_restores_the_tensor(case: tuple[int, list[Extent], int]) -> None:
    tp, parts, blocks = case
    shared = cut(0, parts, tp, blocks=blocks)
    array = np.arange(shared.size * 2).reshape(-1, 2)
    pieces = [shard(array, share or ()) for share in shared.shares]
    assert (merge(pieces, shared) == array).all()


@given(fused())
def test_every_index_is_held_once_or_as_often_as_it_is_copied(case: tuple[int, list[Extent], int]) -> None:
    tp, parts, blocks = case
    shared = cut(0, parts, tp, blocks=blocks)
    expected = np.concatenate(
        [np.full(p.size, tp if p.axis is None else p.axis.copies(tp)) for p in parts] * blocks
    )
    counted = np.concatenate([np.full(stop - start, n) for start, stop, n in shared.copies()])
    assert (counted == expected).all()


@given(fused())
def test_all_ranks_hold_one_shape(case: tuple[int, list[Extent], int]) -> None:
    tp, parts, blocks = case
    shared = cut(0, parts, tp, blocks=blocks)
    local = blocks * sum(p.width * (p.axis.local(tp) if p.axis else 1) for p in parts)
    assert {shared.length(rank) for rank in range(tp)} == {local}


@given(fused())
def test_a_rank_s_segments_ascend(case: tuple[int, list[Extent], int]) -> None:
    """Streaming relies on it: a rank's bytes come in the order of the source."""
    tp, parts, blocks = case
    for share in cut(0, parts, tp, blocks=blocks).shares:
        starts = [source for source, _ in share or () if source is not None]
        assert starts == sorted(starts)


@given(st.integers(1, 16), st.integers(1, 4), st.integers(1, 3), TP, st.booleans())
def test_interleaved_groups_hold_what_separate_parts_hold(
    kv: int, per_group: int, width: int, tp: int, replicate: bool
) -> None:
    q_axis, kv_axis = Axis("q", kv * per_group), Axis("kv", kv, replicate=replicate)
    if q_axis.misfit(tp) or kv_axis.misfit(tp):
        return
    parts = [Extent(q_axis, width), Extent(kv_axis, width), Extent(kv_axis, width)]
    labels = [
        (kind, head)
        for group in range(kv)
        for kind, heads in (
            ("q", range(group * per_group, (group + 1) * per_group)),
            ("k", [group]),
            ("v", [group]),
        )
        for head in heads
        for _ in range(width)
    ]
    shared = cut(0, parts, tp, interleaved=kv_axis)
    for rank, share in enumerate(shared.shares):
        held = {
            labels[i] for source, n in share or () if source is not None for i in range(source, source + n)
        }
        for kind, axis in (("q", q_axis), ("k", kv_axis), ("v", kv_axis)):
            units = {
                u for first, n in shares(axis, tp)[rank] if first is not None for u in range(first, first + n)
            }
            assert {head for k, head in held if k == kind} == units
    assert {shared.length(rank) for rank in range(tp)} == {width * (q_axis.local(tp) + 2 * kv_axis.local(tp))}


@pytest.mark.parametrize(
    ("units", "tp", "kv"),
    [(2, 8, [0, 0, 0, 0, 1, 1, 1, 1]), (8, 16, [r // 2 for r in range(16)]), (4, 4, [0, 1, 2, 3])],
)
def test_copies_are_repeated_not_tiled(units: int, tp: int, kv: list[int]) -> None:
    assert [share[0].source for share in shares(Axis("kv", units, replicate=True), tp)] == kv


def test_a_vocabulary_is_padded_at_its_end() -> None:
    shared = cut(0, [Extent(Axis("vocab", 10, pad=True), 1)], 4)
    assert [list(share or ()) for share in shared.shares] == [
        [Segment(0, 3)],
        [Segment(3, 3)],
        [Segment(6, 3)],
        [Segment(9, 1), Segment(None, 2)],
    ]


def test_a_vocabulary_smaller_than_the_ranks_leaves_ranks_of_zeros() -> None:
    shared = cut(0, [Extent(Axis("vocab", 2, pad=True), 1)], 4)
    assert [shared.zeros(rank) for rank in range(4)] == [0, 0, 1, 1]


@given(st.integers(1, 64), TP)
def test_misfit_gives_the_two_numbers(units: int, tp: int) -> None:
    axis = Axis("a", units)
    assert axis.misfit(tp) == (f"{units} % {tp} = {units % tp}" if units % tp else None)
    with_copies = Axis("a", units, replicate=True).misfit(tp)
    assert (with_copies is None) == (units % tp == 0 or tp % units == 0)


def test_scales_follow_their_weight_in_blocks() -> None:
    weight = cut(0, [Extent(Axis("ffn", 512), 1)], 2)
    scales = scale(weight, 128, 4)
    assert isinstance(scales, Cut)
    assert scales.shares == ((Segment(0, 2),), (Segment(2, 2),))
    assert scale(cut(0, [Extent(Axis("ffn", 384), 1)], 2), 128, 3) == 192


def test_several_stored_indices_may_stand_for_a_block() -> None:
    """3-bit numbers: 32 of them are three int32s."""
    packed = scale(cut(0, [Extent(Axis("ffn", 128), 1)], 2), 32, 12, times=3)
    assert isinstance(packed, Cut)
    assert packed.shares == ((Segment(0, 6),), (Segment(6, 6),))


def test_zeros_fill_a_partial_block_up() -> None:
    """5 blocks of 128, the last of 64 rows, on two ranks of 384 rows each."""
    padded = Cut(0, 576, ((Segment(0, 384),), (Segment(384, 192), Segment(None, 192))))
    scales = scale(padded, 128, 5)
    assert isinstance(scales, Cut)
    assert scales.shares == ((Segment(0, 3),), (Segment(3, 2), Segment(None, 1)))
    assert scale(Cut(0, 576, ((Segment(0, 288), Segment(None, 32)),) * 2), 128, 5) == 288


def test_the_last_block_may_be_partial() -> None:
    scales = scale(whole_dimension(576), 128, 5)
    assert isinstance(scales, Cut)
    assert scales.shares == ((Segment(0, 5),),)


def whole_dimension(size: int) -> Cut:
    return cut(0, [Extent(Axis("a", size), 1)], 1)


def test_whole_and_once_fold_the_tensor_into_one_unit() -> None:
    assert whole(2).shares == ((Segment(0, 1),), (Segment(0, 1),))
    assert once(2).shares == ((Segment(0, 1),), (Segment(None, 1),))
