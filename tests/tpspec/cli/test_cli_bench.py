"""`tpspec bench`: what it measures adds up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from stories import sharded

Tpspec = Callable[..., Any]


def test_a_step_is_its_compute_and_its_collectives(tpspec: Tpspec):
    options = ("--new-tokens", 9, "--runs", 3, "--json")
    report = json.loads(tpspec("bench", sharded(2), *options).out)
    assert (report["tp"], report["collectives"], report["runs"], report["new_tokens"]) == (2, "shared", 3, 9)
    assert report["start_seconds"] > report["load_seconds"] > 0
    assert report["tokens_per_second"] == pytest.approx(1 / report["step_seconds"])
    shares = {(share["collective"], share["site"]): share for share in report["shares"]}
    assert {call: (share["calls"], share["bytes"]) for call, share in shares.items()} == {
        ("all_reduce", "model.embed_tokens"): (1, 256),
        ("all_reduce", "model.layers.0-4.self_attn.o_proj"): (5, 5 * 256),
        ("all_reduce", "model.layers.0-4.mlp.down_proj"): (5, 5 * 256),
        ("all_gather", "next token"): (1, 8),
    }
    spent = sum(share["exchange"] + share["wait"] for share in report["shares"])
    assert report["compute_seconds"] + spent == pytest.approx(report["step_seconds"])
    assert all(share["exchange"] > 0 and share["wait"] >= 0 for share in report["shares"])


def test_the_table_has_a_line_for_each_kind_of_site(tpspec: Tpspec):
    options = ("--prompt-tokens", 5, "--new-tokens", 4, "--runs", 1, "--collectives", "threads")
    ran = tpspec("bench", sharded(2), *options)
    assert ran.status == 0
    assert ran.out.splitlines()[0].endswith("tp=2, threads, 5 tokens of prompt, 4 new ones, median of 1")
    assert re.search(r"decode +\d+\.\d tok/s +\d+(\.\d+)? (ms|µs) a step", ran.out)
    assert re.search(r"compute +\d+(\.\d+)? (ms|µs) +-?\d+\.\d%", ran.out)
    assert re.search(r"all_reduce at model\.layers\.0-4\.mlp\.down_proj +5 +1\.25 KiB", ran.out)


def test_more_tokens_than_the_model_has_positions_are_refused(tpspec: Tpspec):
    ran = tpspec("bench", sharded(1), "--prompt-tokens", 500, "--collectives", "threads")
    assert ran.status == 1
    assert "500 tokens and 64 new ones: the model has 512 positions" in ran.err
