"""The shell of a page: its head, its navigation, its style and a few lines of script; it loads nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from importlib.resources import files

from laconic._version import __version__
from laconic.report.page.html import Markup, el, join
from laconic.report.page.svg import marks

Chapter = tuple[str, str, Markup]
"""A chapter of a page: the anchor that links lead to, its title and its content."""


def document(title: str, about: str, chapters: Sequence[Chapter], footer: str, now: datetime | None = None) -> str:
    """Return a page of chapters as text."""
    style, script = (
        Markup(files(__package__).joinpath(name).read_text("utf-8")) for name in ("style.css", "script.js")
    )
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    head = join(
        [
            el("meta", charset="utf-8"),
            el("meta", http_equiv="Content-Security-Policy", content=allowed),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("title", f"laconic: {title}"),
            el("link", rel="icon", href="data:,"),
            el("style", style),
        ]
    )
    links = [el("li", el("a", title, href=f"#{anchor}")) for anchor, title, _ in chapters]
    written = (now or datetime.now().astimezone()).isoformat(sep=" ", timespec="minutes")
    header = el(
        "header",
        el("p", "laconic", class_="brand"),
        el("h1", title),
        el("p", f"{about}. Written {written} by laconic {__version__}.", class_="note"),
        el("nav", el("ul", *links), aria_label="Contents") if len(links) > 1 else None,
    )
    main = el("main", *(content for *_, content in chapters))
    body = el("body", _patterns(), header, main, el("footer", el("p", footer)), el("script", script))
    return f"<!doctype html>\n{el('html', el('head', head), body, lang='en')}\n"


def _patterns() -> Markup:
    """Return what all pictures share: hatching, for readers who cannot distinguish colours, and the marks' shapes."""

    def pattern(name: str, *content: Markup) -> Markup:
        ground = el("rect", width=6, height=6, class_="ground")
        return el("pattern", ground, *content, id=name, class_=name, width=6, height=6, patternUnits="userSpaceOnUse")

    slanted = el("path", d="M-1,7L7,-1M-1,1L1,-1M5,7L7,5", class_="ink")
    other = el("path", d="M-1,-1L7,7M-1,5L1,7M5,-1L7,1", class_="ink")
    dots = el("circle", cx=1.5, cy=1.5, r=0.9, class_="ink dot") + el("circle", cx=4.5, cy=4.5, r=0.9, class_="ink dot")
    made = (pattern("h-exposed", slanted), pattern("h-coding", Markup(dots)), pattern("h-beyond", slanted, other))
    return el("svg", el("defs", *made, marks()), width=0, height=0, aria_hidden="true", class_="patterns")
