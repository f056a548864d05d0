"""The pages in headless Chromium: nothing fetched, nothing complained of, and the colours are the cut's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, chromium, needs_chromium
from maps import STORIES, map_of, published, row_of

from tpspec.pictures.palette import DARK, HUES, LIGHT
from tpspec.pictures.write import write_map
from tpspec.shard_map import MapRow

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
    assert told() == "model.embed_tokens.weight · rank 0: [0:256] · 64 KiB"
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert told() == (
        "model.layers.0-4.self_attn.q_proj.weight · rank 1: "
        "query heads 4–7 of KV heads 2–3 · [32:64] · 8 KiB in each of 5 tensors"
    )
    browser.press("End")
    browser.press("ArrowDown")
    assert told().startswith("model.layers.0-4.self_attn.k_proj.weight · rank 1: KV heads 2–3 · [16:32]")
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
    assert told.startswith("model.layers.0-4.self_attn.v_proj.weight · rank 0: KV heads 0–1 · [0:16]")


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
            role == "gridcell" and name.startswith("KV head 4 · [512:640] · also on rank")
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
