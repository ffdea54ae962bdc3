"""The page of `laconic report`: a chapter for each plan, comparison and run, in one file that loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from laconic.files import write_text
from laconic.report.page import comparison, curves, plan, predicted, run
from laconic.report.page.collect import collect
from laconic.report.page.document import Chapter, document
from laconic.report.page.html import el
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
    footer = "Times of a step are means or medians as each table says; bytes are of one worker."
    return document(_subject(inputs), _count(inputs), _chapters(inputs), footer, now)


def _chapters(inputs: Inputs) -> list[Chapter]:
    found: list[Chapter] = []
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
