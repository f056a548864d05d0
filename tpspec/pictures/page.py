"""A page that is one file: style and script within, nothing fetched."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from tpspec.pictures.elements import Markup, element
from tpspec.pictures.palette import DARK, LIGHT


def page(title: str, *content: str) -> str:
    """An HTML document. Its policy lets nothing load, and no script run but its own."""
    script = resource("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(_themes() + resource("figures.css") + resource("page.css"))),
    )
    readout = element("output", id="readout", aria_hidden="true", hidden="")
    body = element("body", element("main", *content), readout, element("script", Markup(script)))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def resource(name: str) -> str:
    """A style sheet or the script, as it is in the package."""
    return files("tpspec.pictures").joinpath(name).read_text("utf-8")


def _themes() -> str:
    light, dark = (";".join(f"--{name}:{value}" for name, value in theme.items()) for theme in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
