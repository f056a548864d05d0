"""Columns and paragraphs, in terminals of several widths."""

from __future__ import annotations

import click
import pytest

from tpspec.cli import tables
from tpspec.cli.tables import Bar, print_columns, print_wrapped, wrapped

ROWS = [
    ["tp", "what", ""],
    ["2", "a long word and another", Bar(1.0, "blue")],
    ["4", "short", Bar(0.5, "blue")],
]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def at(width: int, **options: int) -> list[str]:
        monkeypatch.setattr(tables, "line_width", lambda: width)
        print_columns(ROWS, **options)
        return click.unstyle(capsys.readouterr().out).splitlines()

    return at


def test_a_bar_is_as_long_as_there_is_room(lines):
    assert [line.count("█") for line in lines(80)] == [0, 16, 8]
    assert [line.count("█") for line in lines(41)] == [0, 8, 4]
    assert [line.count("█") for line in lines(36)] == [0, 0, 0]


@pytest.mark.parametrize("width", [24, 30, 36, 42, 80])
def test_no_line_is_longer_than_the_terminal(lines, width):
    assert max(map(len, lines(width, flexible=1))) <= width


def test_a_cell_that_is_too_long_goes_on_below(lines):
    assert lines(24, flexible=1)[1:3] == ["  2   a long word and", "      another"]


def test_words_are_counted_without_their_colours():
    assert wrapped(f"{click.style('red', fg='red')} and blue", 7) == [
        f"{click.style('red', fg='red')} and",
        "blue",
    ]


def test_a_paragraph_is_indented_below(monkeypatch, capsys):
    monkeypatch.setattr(tables, "line_width", lambda: 12)
    print_wrapped("one two three four", "→ ", "  ")
    assert capsys.readouterr().out == "→ one two\n  three four\n"
