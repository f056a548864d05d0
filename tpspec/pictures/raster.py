"""Drawings as PNG, by resvg: one wheel, no system library (the extra `pictures`)."""

from __future__ import annotations

from tpspec.errors import TpspecError
from tpspec.pictures.drawing import Drawing

SCALE = 2
"""Pixels of the PNG for each of the drawing, so that text is sharp on a slide."""


def rasterise(figure: Drawing) -> bytes:
    """The PNG's bytes. Raises TpspecError where resvg is not installed."""
    try:
        import resvg_py
    except ModuleNotFoundError:
        remedy = "pip install 'tpspec[pictures]', or take --svg"
        raise TpspecError("a PNG is drawn by resvg-py, which is not installed", remedy=remedy) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=figure.standalone(), zoom=SCALE))
