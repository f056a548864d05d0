"""Drawings as PNG, by resvg: one wheel, no system library (the extra `pictures`)."""

from __future__ import annotations

from tpspec.errors import TpspecError
from tpspec.pictures.drawing import Drawing, words
from tpspec.pictures.elements import Markup

SCALE = 2
"""Pixels of the PNG for each of the drawing, so that text is sharp on a slide."""


def rasterise(figure: Drawing) -> bytes:
    """The PNG's bytes. Raises TpspecError where resvg is not installed, or no font is."""
    try:
        import resvg_py
    except ModuleNotFoundError:
        remedy = "pip install 'tpspec[pictures]', or take --svg"
        raise TpspecError("a PNG is drawn by resvg-py, which is not installed", remedy=remedy) from None

    def drawn(drawing: Drawing) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=drawing.standalone(), zoom=SCALE))

    # Where there is no font, resvg leaves text out without a word.
    if drawn(_sheet("M")) == drawn(_sheet(" ")):
        remedy = "install one (Debian: apt-get install fonts-dejavu-core), or take --svg"
        raise TpspecError("this machine has no font to draw a PNG's text with", remedy=remedy)
    return drawn(figure)


def _sheet(letter: str) -> Drawing:
    return Drawing(20, 20, "a letter", Markup(words(2, 16, letter)))
