"""Figures for slides: whole SVG documents whose colours can be told apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from maps import published, row_of

from tpspec.errors import TpspecError
from tpspec.pictures.elements import element, text
from tpspec.pictures.map_figure import map_figure
from tpspec.pictures.palette import DARK, HUES, LIGHT
from tpspec.pictures.raster import SCALE, rasterise
from tpspec.pictures.sections import sections

SVG = "{http://www.w3.org/2000/svg}"


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast_on_every_ground_that_it_stands_on(theme: dict[str, str]):
    pairs = [(ink, ground) for ink in ("ink", "muted", "accent") for ground in ("paper", "raised")]
    pairs += [("on-hue", f"hue{number}") for number in range(len(HUES))]
    pairs += [("ink", "part"), ("ink", "other-part")]
    assert {pair for pair in pairs if contrast(theme[pair[0]], theme[pair[1]]) < 4.5} == set()
    lines = [("edge", "paper"), ("accent", "paper"), ("floor", "paper"), ("latency", "paper")]
    assert {pair for pair in lines if contrast(theme[pair[0]], theme[pair[1]]) < 3} == set()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_neighbouring_parts_of_a_bar_differ_in_grey_too(theme: dict[str, str]):
    for one, other in (("floor", "cache"), ("cache", "wire"), ("wire", "latency"), ("floor", "wire")):
        assert contrast(theme[one], theme[other]) > 1.15, (one, other)


def test_hues_are_different_to_those_who_do_not_see_red_or_green():
    """By the simulation of Viénot, Brettel and Mollon (1999) for dichromats, distances in linear RGB."""

    def linear(colour: str) -> list[float]:
        return [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]

    protan = ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0))
    deutan = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))
    for seen in (protan, deutan):
        simulated = {
            hue: [sum(a * b for a, b in zip(row, linear(hue), strict=True)) for row in seen] for hue in HUES
        }
        for one, other in combinations(HUES, 2):
            away = sum((a - b) ** 2 for a, b in zip(simulated[one], simulated[other], strict=True)) ** 0.5
            assert away > 0.1, (one, other)


@pytest.mark.parametrize(
    ("name", "tp"),
    [("Meta-Llama-3-70B", 64), ("DeepSeek-V3", 8), ("Nemotron-H-8B-Base-8K", 8), ("bloom", 112), ("gpt2", 4)],
)
def test_a_figure_is_a_whole_document_that_refers_to_nothing_outside(name: str, tp: int):
    drawn = map_figure(published(name, tp), tp, name, "a note").standalone()
    root = ET.fromstring(drawn)
    assert root.tag == f"{SVG}svg"
    assert "var(" not in drawn
    assert "http" not in drawn.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert len(drawn) < 500_000


def test_the_figure_has_a_block_of_the_right_colour_for_each_rank():
    rows = [row_of(published("Meta-Llama-3-70B", 16), "k_proj")]
    root = ET.fromstring(map_figure(rows, 16, "k_proj", "").standalone())
    blocks = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class", "").startswith("h")]
    cells = [rect for rect in blocks if rect.get("height") == "24"]
    assert [rect.get("class") for rect in cells] == [f"h{rank // 2}" for rank in range(16)]
    assert [float(rect.get("x", 0)) for rect in cells] == sorted(float(rect.get("x", 0)) for rect in cells)


def test_names_from_a_checkpoint_are_text_in_an_xml_document():
    evil = '<script>alert("1")</script>&amp;\x00\x1b\ud800\u202e'
    rows = [replace(row, name=f"{evil}.{row.name}") for row in published("gpt2", 4)]
    root = ET.fromstring(map_figure(rows, 4, evil, evil).standalone())
    assert not list(root.iter(f"{SVG}script"))
    assert '<script>alert("1")</script>&amp;\ufffd\ufffd\ufffd\ufffd' in "".join(root.itertext())
    assert element("a", text("<"), "<", title='"') == '<a title="&quot;">&lt;&lt;</a>'


def test_a_name_of_any_length_stays_in_its_column():
    rows = [replace(row, name="x" * 100_000) for row in published("gpt2", 4)]
    assert len(map_figure(rows, 4, "long", "").standalone()) < 50_000
    assert all(len(short) < 1000 for section in sections(rows) for short, _ in section.rows)


def test_a_png_has_twice_the_pixels():
    drawing = map_figure(published("gpt2", 4), 4, "gpt2", "")
    try:
        png = rasterise(drawing)
    except TpspecError as error:
        pytest.skip(str(error))
    assert png.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(png[16:20], "big") == drawing.width * SCALE
