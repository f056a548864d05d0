"""The pages in headless Chromium: nothing fetched, nothing complained of, and the colours are the cut's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Browser, chromium, needs_chromium
from maps import LLAMA_70B, STORIES, map_of, published, row_of

from tpspec.hub import locate
from tpspec.pictures.palette import DARK, HUES, LIGHT
from tpspec.pictures.step_bars import PARTS, parts_of
from tpspec.pictures.write import write_map, write_plan
from tpspec.planning.hardware import find_hardware
from tpspec.planning.plan import Question, make_plan
from tpspec.planning.report import PlanReport
from tpspec.quantities import many
from tpspec.resolve import choose_spec, resolve
from tpspec.shard_map import MapRow, shard_map

pytestmark = needs_chromium

TEXTS_WITH_LITTLE_CONTRAST = """
(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3)
      .map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/^rgba.* 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.matches("script, title, .unseen, [hidden]")) continue;
    const style = getComputedStyle(element);
    const ink = element.tagName === "text" ? style.fill : style.color;
    const [high, low] = [light(ink), light(ground(element))].sort((a, b) => b - a);
    if ((high + 0.05) / (low + 0.05) < 4.5) poor.add(`${element.textContent} ${ink} on ${ground(element)}`);
  }
  return [...poor];
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


def drawn(path: Path, rows: list[MapRow], tp: int, model: str = "a model") -> Path:
    write_map(model, "llama", rows, tp, html=path, svg=None, png=None)
    return path


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def colours_of(browser: Browser, row: str) -> list[list[str]]:
    """The colours of a row's pieces, rank by rank."""
    found = browser.evaluate(
        f"""[...document.querySelectorAll('tr[data-name$="{row}"] td')].map((cell) =>
            [...cell.querySelectorAll("i")].map((piece) => getComputedStyle(piece).backgroundColor))"""
    )
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_head_has_the_colour_of_its_kv_head_and_copies_have_the_same(
    browser: Browser, tmp_path: Path, dark: bool
):
    rows = published("Meta-Llama-3-70B", 16)
    browser.open(drawn(tmp_path / "map.html", rows, 16), dark=dark)
    cut = row_of(rows, "k_proj").cut
    assert cut is not None
    head = [share[0].source // 128 for share in cut.shares if share and share[0].source is not None]
    assert len(head) == 16
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        assert colours_of(browser, name) == [[rgb(HUES[kv])] for kv in head]
    theme = DARK if dark else LIGHT
    assert colours_of(browser, "up_proj") == [[rgb(theme["part"])]] * 16
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(theme["paper"])
    assert browser.evaluate(TEXTS_WITH_LITTLE_CONTRAST) == []


def test_a_page_fetches_nothing_and_logs_nothing(browser: Browser, tmp_path: Path):
    path = drawn(tmp_path / "map.html", published("gpt2", 4), 4)
    browser.open(path)
    assert browser.requests == [path.as_uri()]
    assert browser.console == []


def test_names_and_titles_are_text_whatever_they_hold(browser: Browser, tmp_path: Path):
    evil = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>\x00\u202e.weight"
    rows = [replace(row, name=row.name + evil) for row in published("gpt2", 4)]
    path = drawn(tmp_path / "map.html", rows, 4, evil)
    browser.open(path)
    assert browser.console == []
    assert browser.requests == [path.as_uri()]
    assert browser.evaluate("document.querySelectorAll('img').length + document.scripts.length") == 1
    assert "<img src=x onerror=alert(1)>" in browser.evaluate("document.querySelector('h1').textContent")


def test_keys_move_through_the_map_and_the_cell_is_told(browser: Browser, tmp_path: Path):
    browser.open(drawn(tmp_path / "map.html", map_of(STORIES, 2), 2))

    def told() -> str:
        return str(browser.evaluate("document.querySelector('#readout:not([hidden])')?.textContent ?? ''"))

    browser.press("Tab")
    assert told() == "model.embed_tokens.weight · rank 0: rows [0:256] · 64 KiB"
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert told() == (
        "model.layers.0-4.self_attn.q_proj.weight · rank 1: "
        "query heads 4–7 of KV heads 2–3 · rows [32:64] · 8 KiB in each of 5 tensors"
    )
    browser.press("End")
    browser.press("ArrowDown")
    assert told().startswith("model.layers.0-4.self_attn.k_proj.weight · rank 1: KV heads 2–3 · rows [16:32]")
    browser.press("Escape")
    assert told() == ""


def test_the_mouse_tells_of_a_cell_too(browser: Browser, tmp_path: Path):
    browser.open(drawn(tmp_path / "map.html", map_of(STORIES, 2), 2))
    x, y = browser.evaluate(
        """(() => {
          const box = document.querySelector('tr[data-name$="v_proj.weight"] td').getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    browser.hover(x, y)
    told = browser.evaluate("document.querySelector('#readout:not([hidden])').textContent")
    assert told.startswith("model.layers.0-4.self_attn.v_proj.weight · rank 0: KV heads 0–1 · rows [0:16]")


def test_a_screen_reader_is_told_of_a_grid_with_headers_and_words(browser: Browser, tmp_path: Path):
    browser.open(drawn(tmp_path / "map.html", published("Meta-Llama-3-70B", 16), 16, "Llama"))
    told = browser.accessible()
    assert ("grid", "Shard map of Llama on 16 ranks") in told
    assert {name for role, name in told if role == "columnheader"} >= {"rank", *map(str, range(16))}
    assert any(
        role == "rowheader" and name.startswith("self_attn.k_proj 1 of 8 heads, copied ×2")
        for role, name in told
    )
    assert (
        sum(
            role == "gridcell" and name.startswith("KV head 4 · rows [512:640] · also on rank")
            for role, name in told
        )
        == 4
    )


@pytest.mark.parametrize("tp", [16, 64])
def test_a_phone_scrolls_the_map_not_the_page(browser: Browser, tmp_path: Path, tp: int):
    path = drawn(tmp_path / "map.html", published("Meta-Llama-3-70B", tp), tp)
    assert path.stat().st_size < 200_000
    browser.open(path, width=375, height=812)
    assert browser.evaluate("document.documentElement.scrollWidth") == 375
    assert (
        browser.evaluate("Math.min(...[...document.querySelectorAll('.map td')].map((c) => c.clientWidth))")
        >= 12
    )


def test_paper_gets_the_colours_and_the_whole_width(browser: Browser, tmp_path: Path):
    path = drawn(tmp_path / "map.html", published("Meta-Llama-3-70B", 64), 64)
    browser.open(path, width=718, media="print", dark=True)
    assert browser.evaluate("document.documentElement.scrollWidth") == 718
    assert browser.evaluate("getComputedStyle(document.querySelector('i.h0')).printColorAdjust") == "exact"
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(LIGHT["paper"])


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlanReport, Path]:
    """The plan of Llama-3-70B on H100s, and its page."""
    located = locate(str(LLAMA_70B))
    resolution = resolve(choose_spec(located.config, None), located.config, None)
    question = Question(sizes=(1, 2, 4, 6, 8, 16), gpus=16)
    report = make_plan("Llama-3-70B", resolution, find_hardware("h100-sxm"), question, headers=False)
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    maps = {size.tp: shard_map(resolution, size.tp) for size in report.sizes}
    write_plan(report, maps, html=path, svg=None, png=None)
    return report, path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_points_of_the_curve_lie_where_the_tokens_are(
    browser: Browser, plan: tuple[PlanReport, Path], dark: bool
):
    report, path = plan
    browser.open(path, dark=dark)
    points = browser.evaluate(
        """[...document.querySelectorAll("svg.wide circle")].map((point) => [
            +point.getAttribute("cx"), +point.getAttribute("cy"),
            point.textContent, getComputedStyle(point).fill,
        ])"""
    )
    tokens = [size.exact.tokens for size in report.sizes]
    assert [size.tp for size in report.sizes] == [1, 2, 4, 8, 16]
    heights = [points[0][1] - y for _, y, _, _ in points]
    assert [round(1000 * height / heights[-1]) for height in heights] == [
        round(1000 * held / tokens[-1]) for held in tokens
    ]
    steps = [right[0] - left[0] for left, right in pairwise(points)]
    assert max(steps) - min(steps) < 0.1  # each doubling of tp is as wide
    assert [said.split(";")[0] for _, _, said, _ in points] == [
        "tp 1: no room tokens",
        *(f"tp {size.tp}: {many(size.exact.tokens)} tokens" for size in report.sizes[1:]),
    ]
    theme = DARK if dark else LIGHT
    assert [fill for *_, fill in points] == [rgb(theme["paper"]), *[rgb(theme["accent"])] * 4]
    ground = browser.evaluate("+document.querySelector('svg.wide .ground').getAttribute('x')")
    assert ground == points[3][0], "copies begin beyond tp 8"
    assert browser.evaluate(TEXTS_WITH_LITTLE_CONTRAST) == []
    assert browser.console == []
    assert browser.requests == [path.as_uri()]


def test_the_parts_of_a_bar_are_as_long_as_they_take(browser: Browser, plan: tuple[PlanReport, Path]):
    report, path = plan
    browser.open(path)
    bars = browser.evaluate(
        """[...document.querySelectorAll("section:nth-child(2) svg.wide rect")]
            .filter((part) => part.textContent)
            .map((part) => [
                part.textContent.split(":")[0], +part.getAttribute("width"), getComputedStyle(part).fill,
            ])"""
    )
    expected = [
        (f"tp {size.tp}, batch {step.batch}, {PARTS[name]}", seconds, rgb(LIGHT[name]))
        for i in range(len(report.assumptions.batches))
        for size in report.sizes
        for step in [size.steps[i]]
        if not size.why_not(step.batch)
        for name, seconds in parts_of(step).items()
        if seconds
    ]
    assert [(said, fill) for said, _, fill in bars] == [(said, fill) for said, _, fill in expected]
    longest = max(range(len(bars)), key=lambda i: bars[i][1])
    pixels = bars[longest][1] / expected[longest][1]
    for (said, width, _), (_, seconds, _) in zip(bars, expected, strict=True):
        assert width == pytest.approx(seconds * pixels, abs=0.02), said


def test_a_phone_gets_charts_drawn_for_it(browser: Browser, plan: tuple[PlanReport, Path]):
    browser.open(plan[1], width=375, height=812)
    assert browser.evaluate("document.documentElement.scrollWidth") == 375
    widths = "[...document.querySelectorAll('svg')].map((drawn) => drawn.clientWidth)"
    assert [width for width in browser.evaluate(widths) if width] == [343] * 3
    texts = "[...document.querySelectorAll('.narrow text')].map((t) => t.getBoundingClientRect().height)"
    assert min(browser.evaluate(texts)) >= 11


def test_each_size_has_its_map_and_the_one_with_copies_is_open(
    browser: Browser, plan: tuple[PlanReport, Path]
):
    report, path = plan
    browser.open(path)
    assert path.stat().st_size < 300_000
    titles = browser.evaluate(
        "[...document.querySelectorAll('summary')].map((s) => s.firstChild.data.trim())"
    )
    assert titles == [f"tp {size.tp}" for size in report.sizes]
    shown = "document.querySelector('details[open] .map').style.getPropertyValue('--tp')"
    assert browser.evaluate(shown) == "16"
    images = [name for role, name in browser.accessible() if role == "image"]
    assert any(name.startswith("Tokens held by one replica. tp 1: no room, tp 2: 67.4k") for name in images)
