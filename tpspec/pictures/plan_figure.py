"""The plan's two charts side by side, for a slide."""

from __future__ import annotations

from tpspec.pictures.capacity_curve import capacity_curve
from tpspec.pictures.drawing import Drawing, words
from tpspec.pictures.elements import Markup, element, joined
from tpspec.pictures.memory_bars import memory_bars
from tpspec.pictures.plan_page import heading, premises
from tpspec.pictures.step_bars import step_bars
from tpspec.planning.report import PlanReport

WIDTH, MARGIN, GAP, TOP = 1280.0, 28.0, 44.0, 92.0


def plan_figure(report: PlanReport) -> Drawing:
    """Capacity on the left, the time of a step on the right."""
    each = (WIDTH - 2 * MARGIN - GAP) / 2
    title = heading(report)
    drawn = [
        words(MARGIN, MARGIN + 18, title, "title"),
        words(MARGIN, MARGIN + 42, premises(report), "quiet"),
    ]
    charts: list[Drawing] = []
    bottom = TOP
    if report.sizes:
        sizes, given = report.sizes, report.assumptions
        curve = capacity_curve(sizes, each)
        memory = memory_bars(sizes, report.hardware.hbm, given.reserve, each)
        time = step_bars(sizes, given.context, each)
        charts = [curve, memory, time]
        drawn.append(_moved(curve, MARGIN, TOP))
        drawn.append(_moved(memory, MARGIN, TOP + curve.height + GAP / 2))
        drawn.append(_moved(time, MARGIN + each + GAP, TOP))
        bottom += max(curve.height + GAP / 2 + memory.height, time.height)
    said = ". ".join([title, *(chart.title for chart in charts)])
    return Drawing(WIDTH, bottom + MARGIN, said, joined(drawn))


def _moved(chart: Drawing, x: float, y: float) -> Markup:
    return element("g", chart.content, transform=f"translate({x:g} {y:g})")
