"""How names in memory differ from those on disk."""

from __future__ import annotations

import pytest

from tpspec.errors import TpspecError
from tpspec.language.documents import read_spec_file
from tpspec.language.schema import Rename, Split, Stack

SPEC = "spec: 1\narchitecture: spec\nmodules: {model.norm: replicated}\nmemory: "


def test_entries_stack_split_and_rename(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        SPEC + '[{stack: "a.{q,k}.weight", into: a.qk}, {split: a.kv, into: "a.{k,v}"}, {rename: a, to: b}]'
    )
    memory = read_spec_file(path, "spec.yaml").content.memory
    assert [type(entry) for entry in memory] == [Stack, Split, Rename]
    assert [entry.stored for entry in memory] == ["a.{q,k}.weight", "a.kv", "a"]
    assert memory[0].over is None


def test_a_mistyped_entry_names_its_keys(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC + '[{split: a.kv, onto: "a.{k,v}"}]')
    with pytest.raises(TpspecError) as caught:
        read_spec_file(path, "spec.yaml")
    assert "the keys are split, into" in str(caught.value)
