"""docs/engines.md is what the engines' files and the comparisons come to."""

from __future__ import annotations

from scripts.make_engines import TABLE, render


def test_the_table_of_engines_is_up_to_date() -> None:
    assert render() == TABLE.read_text(), "make engines"
