"""What a checkpoint puts before a spec's names, or in place of their beginning."""

from __future__ import annotations

import pytest

from tpspec.language.documents import read_spec_file
from tpspec.language.schema import Prefix


@pytest.mark.parametrize(
    ("prefix", "stored", "name"),
    [
        (Prefix(stored=""), "model.norm", "model.norm"),
        (Prefix(stored="transformer."), "transformer.wte", "wte"),
        (
            Prefix(stored="model.language_model.", **{"for": "model."}),
            "model.language_model.norm",
            "model.norm",
        ),
    ],
)
def test_a_prefix_gives_the_spec_s_name_and_the_stored_one_back(prefix, stored, name):
    assert prefix.strip(stored) == name
    assert prefix.put(name) == stored


def test_a_name_that_begins_otherwise_is_not_the_prefix_s():
    prefix = Prefix(stored="model.language_model.", **{"for": "model."})
    assert prefix.strip("lm_head") is None
    assert prefix.put("lm_head") == "lm_head"


def test_prefixes_are_texts_or_say_what_they_replace(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        'spec: 1\narchitecture: spec\nprefixes: ["", {stored: model.language_model., for: model.}]\n'
        "modules: {model.norm: replicated}\n"
    )
    plain, replacing = read_spec_file(path, "spec.yaml").content.prefixes
    assert (plain.stored, plain.for_) == ("", "")
    assert (replacing.stored, replacing.for_) == ("model.language_model.", "model.")
