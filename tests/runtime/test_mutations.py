"""A wrong spec, or a wrong step of the runtime, is caught: by its checks, by validation or by proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import SPEC_NAMES

import tpspec.cuts
from tpspec import axes
from tpspec.errors import TpspecError
from tpspec.language.checks import complaints
from tpspec.language.registry import spec_named
from tpspec.language.schema import Part, Rule
from tpspec.language.spec import PlacedRule, Spec
from tpspec.language.tags import TAGS, Tag
from tpspec.resolve import resolve
from tpspec.runtime import narrow, rank_model
from tpspec.runtime.prove import Subject, prove, tiny_subject
from tpspec.runtime.sites import Site

Patch = pytest.MonkeyPatch
RW = {
    "new_decoder_architecture": False,
    "num_kv_heads": None,
    "multi_query": False,
    "parallel_attn": False,
    "alibi": True,
    "bias": True,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def kept(name: str, *changes: tuple[str, Any]) -> tuple[Subject, Any]:
    """A spec's subject, kept open for all tests of the spec."""
    opened = tiny_subject(spec_named(name), changes=dict(changes))
    return opened.__enter__(), opened


@contextmanager
def of(name: str, **changes: Any) -> Iterator[Subject]:
    yield kept(name, *changes.items())[0]


def caught(subject: Subject, patch: Patch, spec: Spec | None = None, tp: int = 2) -> str:
    """What gives a mutant away; empty where it survives."""
    if spec is not None:
        faults = list(complaints(spec))
        if faults:
            return str(faults[0])
        patch.setattr(rank_model, "choose_spec", lambda *_: spec)
    spec = spec or subject.spec
    stored = {item.tensor.name: item.tensor for item in subject.resolution.shared if item.tensor}
    stored |= {name: _ignored(subject, name) for name in subject.resolution.ignored}
    resolution = resolve(spec, subject.resolution.config, stored)
    try:
        return prove(replace(subject, spec=spec, resolution=resolution), tp).failure
    except TpspecError as error:
        return str(error)


def _ignored(subject: Subject, name: str) -> Any:
    raise AssertionError(f"{subject.spec.name} saves {name}, which nothing needs")


def with_rule(spec: Spec, old: PlacedRule, new: Rule) -> Spec:
    rules = tuple(replace(placed, rule=new) if placed is old else placed for placed in spec.rules)
    return replace(spec, rules=rules)


def used(subject: Subject) -> list[PlacedRule]:
    """The rules that name a tensor of the model, in the spec's order."""
    named = {id(item.placed) for item in subject.resolution.shared}
    return [placed for placed in subject.spec.rules if id(placed) in named]


@pytest.mark.parametrize("name", SPEC_NAMES)
def test_column_for_row_and_row_for_column(name: str, monkeypatch: Patch) -> None:
    with of(name) as subject:
        survivors = []
        for placed in used(subject):
            rule = placed.rule
            if rule.tag not in ("column", "qkv-head", "row") or len(rule.parts) != 1:
                continue
            field = rule.tag.replace("-", "_")
            other = "column" if rule.tag == "row" else "row"
            changes = {field: None, other: rule.parts, "reduce_at": None, "reduce_with": None}
            mutant = with_rule(subject.spec, placed, rule.model_copy(update=changes))
            with monkeypatch.context() as patch:
                if not caught(subject, patch, mutant):
                    survivors.append(placed.template)
    assert survivors == []


FUSED = [name for name in SPEC_NAMES if any(len(placed.rule.parts) > 1 for placed in spec_named(name).rules)]


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_matrix_cut_as_a_plain_one(name: str, monkeypatch: Patch) -> None:
    """[Q|K|V] in one run of rows, and interleaved parts as if they lay one after another."""
    with of(name) as subject:
        mutants, survivors = 0, []
        for placed in used(subject):
            rule = placed.rule
            if len(rule.parts) < 2:
                continue
            if rule.interleaved:
                new = rule.model_copy(update={"interleaved": None})
            else:
                item = next(i for i in subject.resolution.shared if i.placed is placed and i.sharing.parts)
                axis = item.sharing.parts[0].axis
                assert axis is not None
                if item.sharing.size % axis.units:
                    continue
                width = item.sharing.size // axis.units
                part = Part(axis=axis.name, width=width)
                new = rule.model_copy(update={rule.tag.replace("-", "_"): (part,), "width": None})
            mutants += 1
            with monkeypatch.context() as patch:
                if not caught(subject, patch, with_rule(subject.spec, placed, new)):
                    survivors.append(placed.template)
    assert mutants
    assert survivors == []


def row_biases(subject: Subject) -> bool:
    return any(i.placed.rule.tag == "row" and i.parameter == "bias" for i in subject.resolution.shared)


def test_a_row_bias_kept_by_all_ranks(monkeypatch: Patch) -> None:
    monkeypatch.setitem(TAGS, "row", Tag("row", "in", "whole", "all-reduce"))
    biased, survivors = 0, []
    for name in SPEC_NAMES:
        with of(name) as subject:
            if row_biases(subject):
                biased += 1
                with monkeypatch.context() as patch:
                    if not caught(subject, patch):
                        survivors.append(name)
    assert biased >= 5
    assert survivors == []


def changed_sites(patch: Patch, change: Callable[[list[Site]], list[Site]]) -> None:
    find_sites = rank_model.find_sites
    patch.setattr(rank_model, "find_sites", lambda *args: change(find_sites(*args)))


def role(site: Site) -> tuple[str, str]:
    """What kind of site it is, whatever its layer."""
    return site.kind, site.module.rpartition(".")[2]


@pytest.mark.parametrize("name", SPEC_NAMES)
@pytest.mark.parametrize("times", [0, 2], ids=["left-out", "doubled"])
def test_a_reduce_left_out_or_doubled(name: str, times: int, monkeypatch: Patch) -> None:
    with of(name) as subject:
        roles: dict[tuple[str, str], None] = {}
        with monkeypatch.context() as patch:
            changed_sites(patch, lambda sites: roles.update(dict.fromkeys(map(role, sites))) or sites)
            assert caught(subject, patch) == ""
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
                if not caught(subject, patch):
                    survivors.append(chosen)
    assert roles
    assert survivors == []


def test_a_norm_s_statistics_left_local(monkeypatch: Patch) -> None:
    changed_sites(monkeypatch, lambda sites: [site for site in sites if site.kind != "statistics"])
    normed, survivors = 0, []
    for name in SPEC_NAMES:
        if any(placed.rule.norm for placed in spec_named(name).rules):
            with of(name) as subject, monkeypatch.context() as patch:
                normed += 1
                # At 4 ranks Mamba-2's two groups span ranks.
                if not caught(subject, patch, tp=4):
                    survivors.append(name)
    assert normed >= 3
    assert survivors == []


@pytest.mark.parametrize(("name", "changes"), [("bloom", {}), ("falcon", RW)])
def test_alibi_slopes_from_local_heads(name: str, changes: dict[str, Any], monkeypatch: Patch) -> None:
    monkeypatch.setattr(narrow, "shares", lambda axis, tp: (axes.shares(axis, tp)[0],) * tp)
    with of(name, **changes) as subject:
        assert "logits are off" in caught(subject, monkeypatch)


def test_kv_heads_tiled_instead_of_repeated(monkeypatch: Patch) -> None:
    def tiled(axis: axes.Axis, tp: int) -> Any:
        rows = axes.shares(axis, tp)
        copied = axis.replicate and tp > axis.units
        return tuple(rows[rank % axis.units * axis.copies(tp)] for rank in range(tp)) if copied else rows

    monkeypatch.setattr(tpspec.cuts, "shares", tiled)
    grouped, survivors = 0, []
    for name in SPEC_NAMES:
        with of(name) as subject:
            if not dict(subject.resolution.copied_above).get("kv", 8) < 8 or not subject.resolution.fits(8):
                continue
            grouped += 1
            with monkeypatch.context() as patch:
                if not caught(subject, patch, tp=8):
                    survivors.append(name)
    assert grouped >= 5
    assert survivors == []
