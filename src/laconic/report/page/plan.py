"""The section of a plan: its verdict and the command to copy, the ranked table, a step's time in parts, the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath

from laconic.planner.sources import is_script
from laconic.planner.values import Advice, Option, Risk
from laconic.report.page import breakdown, layers, sharded
from laconic.report.page.html import Cell, Column, Markup, as_csv, el, facts, prose, table, tiles
from laconic.report.page.units import MISSING, number, spread, times, unit_for, with_unit
from laconic.report.page.values import Planned


def section(planned: Planned, anchor: str) -> Markup:
    """Return the section of a plan, which links reach as `anchor`."""
    advice = planned.advice
    best = advice.best
    return el(
        "section",
        el("p", "Plan", class_="kind"),
        el("h2", name_of(advice)),
        el("p", prose(advice.verdict), class_="verdict"),
        *(el("p", prose(f"{warning}."), class_="warn") for warning in advice.warnings),
        *([_to_copy(advice.line)] if advice.line else []),
        tiles(
            [
                (with_unit(best.step_seconds, "seconds"), "predicted step", _between(best)),
                (times(best.speed_up), "speed-up", f"over {advice.baseline.strategy}"),
                (with_unit(best.sent_bytes, "bytes"), "sent by a worker in a step", _less(best, advice.baseline)),
                (with_unit(best.exposed_seconds, "seconds"), "exposed communication", "of a step, hidden by nothing"),
            ]
        ),
        facts(
            [
                ("subject", advice.subject if advice.subject != name_of(advice) else None),
                ("model", f"{advice.parameters:,} parameters in {advice.tensors:,} tensors"),
                ("workers", str(advice.workers)),
                ("network", advice.network),
                ("best by", advice.objective),
                ("accepted loss", f"{advice.loss_budget:.2%}" if advice.loss_budget else "none: the same mathematics"),
                ("strategies priced", f"{advice.priced:,}" if advice.priced else None),
                ("plan", str(planned.path)),
            ]
        ),
        el("h3", "Ranked"),
        _table(advice, anchor),
        sharded.block(advice, anchor),
        breakdown.block(
            breakdown.of_plan(advice), "A step's time, predicted", "Whiskers: the prediction's uncertainty."
        ),
        layers.block(advice.layers, anchor),
        _notes(advice.notes),
        id=anchor,
    )


def name_of(advice: Advice) -> str:
    """Return what the plan is for; for a script, its name without the folder."""
    return PurePath(advice.subject).name if is_script(advice.subject) else advice.subject


def _to_copy(line: str) -> Markup:
    button = el("button", "Copy", type="button", class_="copy", data_copy=line, aria_label="Copy this line")
    return el("div", el("pre", el("code", line), tabindex="0", aria_label="The line to copy"), button, class_="line")


def _between(option: Option) -> str:
    return f"{with_unit(option.low_seconds, 'seconds')} to {with_unit(option.high_seconds, 'seconds')}"


def _less(best: Option, baseline: Option) -> str:
    return f"{number(100 * best.sent_bytes / baseline.sent_bytes)} % of the baseline's" if baseline.sent_bytes else ""


def _table(advice: Advice, anchor: str) -> Markup:
    options = [*advice.options, *([] if advice.baseline in advice.options else [advice.baseline])]
    step = unit_for([option.step_seconds for option in options], "seconds")
    sent = unit_for([option.sent_bytes for option in options], "bytes")
    memory = unit_for([option.memory_bytes for option in options], "bytes")
    dollars, joules = (any(getattr(option, name) is not None for option in options) for name in ("dollars", "joules"))
    columns = [
        Column("strategy", "code"),
        Column(step.heading("step"), about="predicted [uncertainty]"),
        Column("speed-up", about=f"over {advice.baseline.strategy}"),
        Column(sent.heading("sent"), about="by a worker in a step"),
        Column(step.heading("computing"), about="these three add up to the step"),
        Column(step.heading("coding"), about="encoding and decoding, with the Python around them"),
        Column(step.heading("exposed"), about="communication that nothing hides"),
        Column("lossless", "text", "the mathematics of synchronous SGD, in the precision of the gradients"),
        Column("loss × measured", about="final loss over bsp's [interval], where it was measured on such a model"),
        Column(memory.heading("memory"), about="beside parameters, gradients and optimizer"),
        *([Column("$ per 1000 steps")] if dollars else []),
        *([Column("J per step")] if joules else []),
        Column("guarantee", "text"),
    ]
    rows = []
    for place, option in enumerate(options):
        name = option.strategy + (" (baseline)" if option == advice.baseline else "")
        rows.append(
            [
                Cell(name, place, "best" if place == 0 else None),
                Cell(spread(step, option.step_seconds, option.low_seconds, option.high_seconds), option.step_seconds),
                Cell(times(option.speed_up), option.speed_up, "good" if option.speed_up > 1.005 else None),
                Cell(sent.of(option.sent_bytes), option.sent_bytes),
                *(Cell(step.of(part), part) for part in _parts(option)),
                Cell("yes" if option.lossless else "no", float(option.lossless)),
                _risk(option, advice.baseline),
                Cell(memory.of(option.memory_bytes), option.memory_bytes),
                *([Cell(_amount(option.dollars, 1000), option.dollars)] if dollars else []),
                *([Cell(_amount(option.joules), option.joules)] if joules else []),
                Cell(option.guarantee or MISSING),
            ]
        )
    return table(f"Strategies for {advice.subject}", columns, rows, _csv(options), f"{anchor}.csv")


def _parts(option: Option) -> tuple[float, float, float]:
    return option.computing_seconds, option.coding_seconds, option.exposed_seconds


def _risk(option: Option, baseline: Option) -> Cell:
    risk = option.risk
    if risk is None:
        as_baseline = option.guarantee == baseline.guarantee
        unknown = "as the baseline" if as_baseline else "unknown here"
        return Cell("same" if option.lossless else unknown, 1.0 if option.lossless else None, "quiet")
    shown = f"{risk.loss_ratio:.3f}× [{risk.low:.3f}–{risk.high:.3f}]"
    about = f"measured on {risk.task}, {risk.parameters:,} parameters, with {risk.workers} workers"
    return Cell(shown, risk.loss_ratio, "bad" if risk.low > 1.0 else None, about)


def _amount(value: float | None, steps: int = 1) -> str:
    return MISSING if value is None else number(steps * value)


def _csv(options: Sequence[Option]) -> str:
    risks = list(Risk.__dataclass_fields__)
    plain = [field for field in Option.__dataclass_fields__ if field != "risk"]
    rows = []
    for option in options:
        risk = asdict(option.risk) if option.risk is not None else {}
        rows.append([*(getattr(option, name) for name in plain), *(risk.get(name) for name in risks)])
    return as_csv([*plain, *(f"risk_{name}" for name in risks)], rows)


def _notes(notes: Sequence[str]) -> Markup | None:
    if not notes:
        return None
    return el(
        "div",
        el("h3", "What the figures rest on"),
        el("ul", *(el("li", prose(note)) for note in notes)),
        class_="block",
    )
