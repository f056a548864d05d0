"""Pieces: what is drawn of a rank's share is that share, and looks alike only where it is the same."""

from __future__ import annotations

import pytest
from maps import published, row_of

from tpspec.pictures.palette import look
from tpspec.pictures.pieces import Piece, kind, pieces, whole_everywhere
from tpspec.pictures.words import held, label, shared_out
from tpspec.shard_map import MapRow

DIVERSE = [
    ("Meta-Llama-3-70B", 16),
    ("falcon-40b", 16),
    ("pythia-6.9b", 4),
    ("gpt2", 4),
    ("Mixtral-8x7B-v0.1", 8),
    ("DeepSeek-V3", 8),
    ("Nemotron-H-8B-Base-8K", 8),
    ("Falcon-H1-7B", 4),
    ("Qwen3-Next-80B-A3B", 4),
    ("stablelm-2-12b", 8),
    ("bloom", 16),
    ("dbrx-base", 16),
    ("OLMo-2-1124-13B", 8),
]


def rows_covered(found: tuple[Piece, ...]) -> list[tuple[int | None, int]]:
    """The pieces as runs, neighbours joined, as a cut has them."""
    runs: list[tuple[int | None, int]] = []
    for piece in found:
        source, length = runs[-1] if runs else (None, 0)
        if runs and source is not None and piece.source == source + length:
            runs[-1] = (source, length + piece.length)
        else:
            runs.append((piece.source, piece.length))
    return runs


@pytest.mark.parametrize(("name", "tp"), DIVERSE)
def test_the_pieces_of_a_cell_are_the_share_that_the_cut_gives(name: str, tp: int):
    for row in published(name, tp):
        if row.cut is None or row.cut.dim is None:
            continue
        scale, size = row.sharing.divisor, sum(part.size for part in row.sharing.parts) * row.sharing.blocks
        for rank, share in enumerate(row.cut.shares):
            found = pieces(row, rank)
            expected = [
                (None, n * scale) if s is None else (s * scale, min((s + n) * scale, size) - s * scale)
                for s, n in share or ()
            ]
            if found[0].part is None:
                assert sum(piece.length for piece in found) == sum(n for _, n in expected)
            else:
                assert rows_covered(found) == expected, row.name


@pytest.mark.parametrize(("name", "tp"), DIVERSE)
def test_ranks_look_alike_only_where_they_hold_copies(name: str, tp: int):
    for row in published(name, tp):
        if not row.heads or row.cut is None or row.cut.dim is None or len(row.sharing.parts) > 1:
            continue
        ((axis, kv),) = row.heads
        for rank in range(1, tp):
            alike = {p.look for p in pieces(row, rank)} & {p.look for p in pieces(row, rank - 1)}
            shared = kv.copies(tp) > 1 and (rank - 1) // kv.copies(tp) == rank // kv.copies(tp)
            assert bool(alike) == shared, (row.name, axis, rank)


def test_heads_of_llama_3_70b_at_tp_16_have_the_colour_of_their_kv_head():
    rows = published("Meta-Llama-3-70B", 16)
    query, key = row_of(rows, "q_proj"), row_of(rows, "k_proj")
    for rank in range(16):
        assert [(p.units, p.look) for p in pieces(query, rank)] == [((4 * rank, 4), rank // 2)]
        assert [(p.units, p.look) for p in pieces(key, rank)] == [((rank // 2, 1), rank // 2)]
    assert label(query, pieces(query, 9)[0]) == "36–39"
    assert shared_out(key) == "1 of 8 heads, copied ×2"
    assert held(query, 9).startswith("query heads 36–39 of KV head 4 · rows [4608:5120]")
    assert "rows [512:640] · also on rank 8" in held(key, 9)


def test_an_interleaved_matrix_shows_each_group_with_its_own_colour():
    fused = row_of(published("falcon-40b", 4), "query_key_value")
    assert [(label(fused, p), p.look) for p in pieces(fused, 1)] == [
        ("q32–47", 2),
        ("k2", 2),
        ("v2", 2),
        ("q48–63", 3),
        ("k3", 3),
        ("v3", 3),
    ]
    assert shared_out(fused) == "32 q + 2 k + 2 v heads"


def test_stacked_matrices_show_a_piece_of_each():
    merged = row_of(published("Phi-3-mini-4k-instruct", 4), "gate_up_proj")
    assert [(p.part, p.length, kind(merged, p)) for p in pieces(merged, 1)] == [
        (0, 2048, "part"),
        (1, 2048, "other-part"),
    ]
    assert shared_out(merged) == "2 × 2048 of 8192 rows"


def test_zeros_that_fill_up_a_vocabulary_are_a_piece_of_the_last_rank():
    embedding = row_of(published("gpt2", 4), "wte")
    assert [[kind(embedding, p) for p in pieces(embedding, r)] for r in (2, 3)] == [
        ["part"],
        ["part", "zeros"],
    ]
    assert pieces(embedding, 3)[1].length == 3
    assert shared_out(embedding) == "12565 of 50257 rows, 3 zeros on rank 3"


def test_what_is_whole_or_once_or_on_no_rank_says_so():
    rows = published("DeepSeek-V3", 8)
    norm, dropped = row_of(rows, "kv_a_layernorm"), row_of(rows, "**")
    assert whole_everywhere(norm)
    assert [kind(norm, p) for p in pieces(norm, 3)] == ["whole"]
    assert not pieces(dropped, 0)
    assert shared_out(dropped) == "on no rank, kept for merging"


def test_more_than_eight_kv_heads_take_the_colour_of_those_that_share_a_rank():
    rows = published("OLMo-2-1124-13B", 8)
    ((_, kv),) = row_of(rows, "k_proj").heads
    assert [look(kv, unit, 8) for unit in range(40)] == [unit // 5 for unit in range(40)]
    assert len({look(kv, unit, 1) for unit in range(40)}) == 1


def test_a_row_keeps_one_set_of_kv_heads():
    rows: list[MapRow] = published("gemma-3-27b-it", 8)
    assert {kv.units for row in rows for _, kv in row.heads} == {16}
