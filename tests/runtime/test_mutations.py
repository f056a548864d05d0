"""A wrong spec, or a wrong step of the runtime, is caught: by its checks, by validation or by proof.

`make mutations` tries every mutant of every spec; here is a sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tiny_models import variants_of

import tpspec.cuts
from scripts.mutants import caught, mutants
from scripts.mutations import why
from scripts.proofs import provable
from tpspec import axes
from tpspec.language.registry import spec_named
from tpspec.language.tags import TAGS, Tag
from tpspec.runtime import narrow, rank_model
from tpspec.runtime.prove import Subject, tiny_subject
from tpspec.sites import Site

Patch = pytest.MonkeyPatch
RW = next(variant.config for variant in variants_of("falcon") if variant.name == "rw")
BIASED = ["llama", "gpt2", "gpt_neox", "bloom", "opt", "gpt_oss"]
NORMED = ["olmo2", "mamba2", "minimax_m2"]
GROUPED = ["llama", "mixtral", "phi3", "falcon", "gpt_oss"]


@cache
def kept(name: str, *changes: tuple[str, Any]) -> tuple[Subject, Any]:
    """A spec's subject, kept open for all tests of the spec."""
    opened = tiny_subject(spec_named(name), changes=dict(changes))
    return opened.__enter__(), opened


def of(name: str, **changes: Any) -> Subject:
    return kept(name, *changes.items())[0]


@pytest.mark.parametrize("name", provable())
def test_a_changed_tag_is_caught(name: str) -> None:
    """One tag of each spec, always the same."""
    with tiny_subject(spec_named(name)) as subject:
        tags = [
            mutant
            for mutant in mutants(subject)
            if mutant.kind == "tag" and not why(name, mutant.rule, mutant.change)
        ]
        mutant = random.Random(name).choice(tags)
        assert caught(subject, mutant.spec), f"{mutant.rule}: {mutant.change}"


@pytest.mark.parametrize("kind", ["part", "bias", "reduce"])
@pytest.mark.parametrize("name", ["gpt_neox", "mixtral", "phi3"])
def test_a_changed_part_bias_or_reduce_is_caught(name: str, kind: str) -> None:
    subject = of(name)
    tried = [mutant for mutant in mutants(subject) if mutant.kind == kind]
    alive = [
        (mutant.rule, mutant.change)
        for mutant in tried
        if not why(name, mutant.rule, mutant.change) and not caught(subject, mutant.spec)
    ]
    assert alive == []


def test_a_row_bias_kept_by_all_ranks(monkeypatch: Patch) -> None:
    monkeypatch.setitem(TAGS, "row", Tag("row", "in", "whole", "all-reduce"))
    assert [name for name in BIASED if not caught(of(name), of(name).spec, (2,))] == []


def changed_sites(patch: Patch, change: Callable[[list[Site]], list[Site]]) -> None:
    find_sites = rank_model.find_sites
    patch.setattr(rank_model, "find_sites", lambda *args: change(find_sites(*args)))


def role(site: Site) -> tuple[str, str]:
    """What kind of site it is, whatever its layer."""
    return site.kind, site.module.rpartition(".")[2]


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "falcon", "mixtral", "olmo2", "deepseek_v3", "mamba2"])
@pytest.mark.parametrize("times", [0, 2], ids=["left-out", "doubled"])
def test_a_reduce_left_out_or_doubled(name: str, times: int, monkeypatch: Patch) -> None:
    subject = of(name)
    roles: dict[tuple[str, str], None] = {}
    with monkeypatch.context() as patch:
        changed_sites(patch, lambda sites: roles.update(dict.fromkeys(map(role, sites))) or sites)
        assert caught(subject, subject.spec, (2,)) == ""
    survivors = []
    for chosen in roles:
        if chosen[0] not in ("reduce", "reduce_input", "embedding"):
            continue
        with monkeypatch.context() as patch:
            changed_sites(
                patch,
                lambda sites, chosen=chosen: [
                    site for site in sites for _ in range(times if role(site) == chosen else 1)
                ],
            )
            if not caught(subject, subject.spec, (2,)):
                survivors.append(chosen)
    assert roles
    assert survivors == []


def test_a_norm_s_statistics_left_local(monkeypatch: Patch) -> None:
    """At 4 ranks Mamba-2's two groups span ranks."""
    changed_sites(monkeypatch, lambda sites: [site for site in sites if site.kind != "statistics"])
    assert [name for name in NORMED if not caught(of(name), of(name).spec, (4,))] == []


@pytest.mark.parametrize(("name", "changes"), [("bloom", {}), ("falcon", RW)])
def test_alibi_slopes_from_local_heads(name: str, changes: dict[str, Any], monkeypatch: Patch) -> None:
    subject = of(name, **changes)
    monkeypatch.setattr(narrow, "held_units", lambda axis, tp, rank: axes.held_units(axis, tp, 0 * rank))
    assert "logits are off" in caught(subject, subject.spec, (2,))


def test_kv_heads_tiled_instead_of_repeated(monkeypatch: Patch) -> None:
    repeated = axes.shares

    def tiled(axis: axes.Axis, tp: int) -> Any:
        rows = repeated(axis, tp)
        copied = axis.replicate and tp > axis.units
        return tuple(rows[rank % axis.units * axis.copies(tp)] for rank in range(tp)) if copied else rows

    for module in (axes, tpspec.cuts):
        monkeypatch.setattr(module, "shares", tiled)
    assert [name for name in GROUPED if not caught(of(name), of(name).spec, (8,))] == []
