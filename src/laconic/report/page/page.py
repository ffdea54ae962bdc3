"""The whole page: one file with its style, a few lines of script and all its data, which loads nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from laconic._version import __version__
from laconic.files import write_text
from laconic.report.page import comparison, curves, plan, predicted, run
from laconic.report.page.collect import collect
from laconic.report.page.html import Markup, el, join
from laconic.report.page.svg import marks
from laconic.report.page.values import Inputs


def write(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Read the inputs, write the page and return its path; without `out`, it goes into the first folder, or here."""
    inputs = collect(paths)
    if out is None:
        out = next((path for path in paths if path.is_dir()), Path()) / "report.html"
    content = render(inputs)
    write_text(out, content)
    return out


def render(inputs: Inputs, now: datetime | None = None) -> str:
    """Return the page as text."""
    chapters = _chapters(inputs)
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
            el("title", f"laconic: {_subject(inputs)}"),
            el("link", rel="icon", href="data:,"),
            el("style", style),
        ]
    )
    links = [el("li", el("a", title, href=f"#{anchor}")) for anchor, title, _ in chapters]
    written = (now or datetime.now().astimezone()).isoformat(sep=" ", timespec="minutes")
    header = el(
        "header",
        el("p", "laconic", class_="brand"),
        el("h1", _subject(inputs)),
        el("p", f"{_count(inputs)}. Written {written} by laconic {__version__}.", class_="note"),
        el("nav", el("ul", *links), aria_label="Contents") if len(links) > 1 else None,
    )
    main = el("main", *(content for *_, content in chapters))
    footer = el("footer", el("p", "Times of a step are means or medians as each table says; bytes are of one worker."))
    body = el("body", _patterns(), header, main, footer, el("script", script))
    return f"<!doctype html>\n{el('html', el('head', head), body, lang='en')}\n"


def _chapters(inputs: Inputs) -> list[tuple[str, str, Markup]]:
    """Return the chapters as (anchor, title, content)."""
    found: list[tuple[str, str, Markup]] = []
    for place, planned in enumerate(inputs.plans, 1):
        found.append((f"plan-{place}", f"Plan: {plan.name_of(planned.advice)}", plan.section(planned, f"plan-{place}")))
    held = predicted.pairs(inputs) if inputs.plans and inputs.comparisons else []
    if held:
        found.append(("predicted", "Predicted against measured", predicted.section(held, "predicted")))
    for place, compared in enumerate(inputs.comparisons, 1):
        anchor = f"comparison-{place}"
        found.append((anchor, f"Comparison: {compared.folder.name}", comparison.section(compared, anchor)))
    together = [(one.name, [one.logged]) for one in inputs.runs if one.logged]
    if len(together) > 1:
        inner = curves.section(together, "runs-curves.csv")
        content = el("section", el("p", "Runs", class_="kind"), el("h2", "Side by side"), inner, id="runs")
        found.append(("runs", "Runs side by side", content))
    for place, one in enumerate(inputs.runs, 1):
        found.append((f"run-{place}", f"Run: {one.folder.name}", run.section(one, f"run-{place}")))
    return found


def _subject(inputs: Inputs) -> str:
    if inputs.plans:
        return plan.name_of(inputs.plans[0].advice)
    if inputs.comparisons:
        return Path(str(inputs.comparisons[0].settings["command"][0])).name
    return inputs.runs[0].folder.absolute().name


def _count(inputs: Inputs) -> str:
    groups = (("plan", inputs.plans), ("comparison", inputs.comparisons), ("run", inputs.runs))
    return ", ".join(f"{len(of)} {name}{'s' if len(of) > 1 else ''}" for name, of in groups if of)


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
