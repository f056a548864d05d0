"""Pictures into files: of one shard map, and of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpspec.pictures.drawing import Drawing
from tpspec.pictures.elements import element
from tpspec.pictures.map_figure import map_figure
from tpspec.pictures.map_table import map_grid, map_numbers
from tpspec.pictures.page import page
from tpspec.pictures.plan_figure import plan_figure
from tpspec.pictures.plan_page import plan_page
from tpspec.pictures.words import bytes_per_rank, title_of
from tpspec.planning.report import PlanReport
from tpspec.quantities import size
from tpspec.shard_map import MapRow


def write_map(
    model: str,
    spec: str,
    rows: Sequence[MapRow],
    tp: int,
    *,
    html: Path | None,
    svg: Path | None,
    png: Path | None,
) -> None:
    """Writes the shard map as a page, as a figure, or both.

    Raises TpspecError where a PNG is wanted and nothing that draws one is installed.
    """
    title = f"{title_of(model)} on {tp} rank{'s' if tp > 1 else ''}"
    weight = bytes_per_rank(rows)
    held = f" A rank holds {size(weight)} of these tensors." if weight else ""
    note = f"What each rank holds of each tensor, by the spec {spec}.{held}"
    if html:
        grid = element("figure", map_grid(rows, tp, f"Shard map of {title}"))
        numbers = (element("h2", "The same in numbers"), map_numbers(rows))
        html.write_text(
            page(title, element("h1", title), element("p", note, class_="lede"), grid, *numbers), "utf-8"
        )
    write_figure(map_figure(rows, tp, title, note), svg, png)


def write_plan(
    report: PlanReport,
    maps: Mapping[int, Sequence[MapRow]],
    *,
    html: Path | None,
    svg: Path | None,
    png: Path | None,
) -> None:
    """Writes a plan as a page with the shard map's rows of each tp, and its two charts as a figure.

    Raises TpspecError as write_map does.
    """
    if html:
        html.write_text(plan_page(report, maps), "utf-8")
    write_figure(plan_figure(report), svg, png)


def write_figure(figure: Drawing, svg: Path | None, png: Path | None) -> None:
    """Writes a drawing as SVG, as PNG, or both."""
    if svg:
        svg.write_text(figure.standalone(), "utf-8")
    if png:
        from tpspec.pictures.raster import rasterise

        png.write_bytes(rasterise(figure))
