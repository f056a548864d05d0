"""docs/mutations.md: every provable spec was tried, and what survives has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutations import TABLE, fits, read_reasons, read_results, render, why
from scripts.proofs import provable
from scripts.spec_keys import mutation_key, proof_key
from tpspec.language.registry import BUILT_IN, spec_from_file
from tpspec.language.spec import Spec

RESULTS = read_results()
SURVIVORS = [(name, rule, change) for name, each in RESULTS.items() for _, rule, change in each["survivors"]]


def test_every_spec_that_can_be_proved_was_mutated() -> None:
    assert sorted(RESULTS) == provable(), "make mutations"


def test_every_survivor_has_a_reason() -> None:
    assert [survivor for survivor in SURVIVORS if not why(*survivor)] == []


def test_every_reason_is_that_of_a_survivor() -> None:
    assert [
        entry for entry in read_reasons() if not any(fits(entry, *survivor) for survivor in SURVIVORS)
    ] == []


def test_the_table_of_mutants_is_up_to_date() -> None:
    assert TABLE.read_text() == render(RESULTS), "make mutations"


def edited(folder: Path, old: str, new: str) -> Spec:
    """Mamba-2's spec with one thing written otherwise."""
    text = (BUILT_IN / "mamba2.yaml").read_text()
    assert text.count(old) == 1
    (folder / "mamba2.yaml").write_text(text.replace(old, new))
    return spec_from_file(folder / "mamba2.yaml")


@pytest.mark.parametrize(
    ("old", "new", "proved_again", "mutated_again"),
    [
        ("spec: 1", "# A comment.\n\nspec: 1", False, False),
        ("  norm_f:  {replicated: hidden_size}", "  norm_f: replicated", True, False),
        ("per_sequence: local(ssm)", "per_sequence: 2 * local(ssm)", False, False),
        ("use_bias: use_bias or false", "use_bias: use_bias or true", True, True),
        ("{row: ssm,", "{row: ssm, width: 2 * ssm_head_dim,", True, True),
        ("state_size: 16", "state_size: 8", True, True),
    ],
    ids=["comment", "shape", "cache", "default", "width", "tiny"],
)
def test_what_makes_a_proof_or_a_table_of_mutants_stale(
    tmp_path: Path, old: str, new: str, proved_again: bool, mutated_again: bool
) -> None:
    before, after = edited(tmp_path, "spec: 1", "spec: 1"), edited(tmp_path, old, new)
    assert (proof_key(before) != proof_key(after)) == proved_again
    assert (mutation_key(before) != mutation_key(after)) == mutated_again
