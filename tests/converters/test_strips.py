"""The geometry by itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpspec.converters.strips import Block, Owned, Run, blocks, clip, owners, strips
from tpspec.layout import Cut, Fold, Segment

sizes = st.integers(1, 6)


@given(st.builds(Fold, sizes, sizes, sizes), st.integers(1, 300))
def test_strips_are_whole_rows_or_whole_indices_where_those_fit(fold: Fold, limit: int) -> None:
    found = list(strips(fold, limit))
    row = fold.size * fold.inner
    assert found[0][0] == 0
    assert found[-1][1] == fold.outer * row
    for (_, stop), (start, _) in pairwise(found):
        assert start == stop
        assert start % (row if row <= limit else fold.inner if fold.inner <= limit else 1) == 0
    assert all(stop - start <= limit for start, stop in found)


@given(st.builds(Fold, sizes, sizes, sizes), st.data())
def test_blocks_cover_a_run_of_bytes_in_order(fold: Fold, data: st.DataObject) -> None:
    total = fold.outer * fold.size * fold.inner
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    covered = []
    for outer, rows, first, last, low, high in blocks(fold, start, stop):
        assert rows == 1 or (first, last, low, high) == (0, fold.size, 0, fold.inner)
        assert last - first == 1 or (low, high) == (0, fold.inner)
        covered += [
            ((o * fold.size) + index) * fold.inner + byte
            for o in range(outer, outer + rows)
            for index in range(first, last)
            for byte in range(low, high)
        ]
    assert covered == list(range(start, stop))


@pytest.mark.parametrize("fold", [Fold(0, 3, 2), Fold(3, 0, 2), Fold(3, 2, 0)])
def test_an_empty_tensor_has_no_strips(fold: Fold) -> None:
    assert not list(strips(fold, 8))


def test_a_width_counts_bytes_of_one_row() -> None:
    assert Block(0, 3, 0, 4, 0, 2).width == 8
    assert Block(0, 1, 2, 3, 1, 5).width == 4


def test_copied_indices_are_read_from_the_first_rank_that_holds_them() -> None:
    cut = Cut(0, 6, ((Segment(2, 2),), (Segment(None, 1), Segment(0, 6)), (Segment(4, 2),)))
    assert owners(cut) == (Owned(1, Run(0, 1, 6)),)
    cut = Cut(0, 6, ((Segment(0, 2),), (Segment(1, 3),), (Segment(1, 5),)))
    assert owners(cut) == (Owned(0, Run(0, 0, 2)), Owned(1, Run(2, 1, 2)), Owned(2, Run(4, 3, 2)))


def test_clipping_keeps_source_and_local_in_step() -> None:
    assert clip(Run(10, 3, 5), 12, 14) == Run(12, 5, 2)
    assert clip(Run(10, 3, 5), 15, 20) is None
