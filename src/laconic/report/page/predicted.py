"""Predicted against measured steps, for the strategies that are in a plan and in a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from laconic.errors import LaconicError
from laconic.experiments.statistics import Spread
from laconic.planner.values import Option
from laconic.report.page.axes import axis_for, wide_apart
from laconic.report.page.circumstances import settings_text
from laconic.report.page.html import Cell, Column, Markup, as_csv, el, table, tiles
from laconic.report.page.svg import Frame, drawing, figure, legend, mark, path, segment, swatch
from laconic.report.page.units import spread, unit_for, with_unit
from laconic.report.page.values import Compared, Inputs, Planned

WIDE, NARROW = 560.0, 340.0


@dataclass(frozen=True)
class Pair:
    """One strategy that is in a plan and in a comparison."""

    option: Option
    measured: Spread
    planned: Planned
    compared: Compared

    @property
    def error(self) -> float:
        """The error of the predicted step as a share of the measured one."""
        return self.option.step_seconds / self.measured.middle - 1

    @property
    def inside(self) -> bool:
        return self.option.low_seconds <= self.measured.middle <= self.option.high_seconds


def pairs(inputs: Inputs) -> list[Pair]:
    """Return the strategies that plans and comparisons share; spellings of the same sentence count as one."""
    found: list[Pair] = []
    for planned in inputs.plans:
        options = {canonical(o.strategy): o for o in (planned.advice.baseline, *planned.advice.options)}
        for compared in inputs.comparisons:
            tuned = compared.settings.get("tuning") is not None
            for line in compared.lines:
                name = line.name.rpartition(" at ")[0] if tuned and " at " in line.name else line.name
                option = options.get(canonical(name))
                if option is not None and line.step_seconds is not None and line.step_seconds.value.middle > 0:
                    found.append(Pair(option, line.step_seconds.value, planned, compared))
    return found


def canonical(strategy: str) -> str:
    """Return the sentence in canonical form; a text that cannot be parsed keeps its words."""
    from laconic.experiments.rivals.text import read

    try:
        return str(read(strategy))
    except LaconicError:
        return " ".join(strategy.split())


def section(found: Sequence[Pair], anchor: str) -> Markup:
    """Return the section that compares predictions with measurements, which links reach as `anchor`."""
    errors = [abs(pair.error) for pair in found]
    inside = sum(pair.inside for pair in found)
    first = found[0]
    alike = first.planned.advice.workers == first.compared.settings.get("workers")
    sources = list(dict.fromkeys(pair.compared.folder for pair in found))
    return el(
        "section",
        el("p", "Plan and comparison", class_="kind"),
        el("h2", "Predicted against measured"),
        None if alike else el("p", _unlike(first), class_="warn"),
        tiles(
            [
                (f"{median(errors):.1%}", "median error of a step", f"over {_several(len(found))}"),
                (f"{max(errors):.1%}", "largest error", max(found, key=lambda pair: abs(pair.error)).option.strategy),
                (f"{inside} of {len(found)}", "measured within the uncertainty", "that the plan stated"),
            ]
        ),
        _scatter(found, sources),
        _table(found, anchor),
        el(
            "p",
            f"Planned for {first.planned.advice.network}; measured on {settings_text(first.compared.settings)}.",
            class_="note",
        ),
        id=anchor,
    )


def _several(count: int) -> str:
    return "one strategy" if count == 1 else f"{count} strategies"


def _unlike(pair: Pair) -> str:
    return (
        f"The plan is for {pair.planned.advice.workers} workers, the comparison ran "
        f"{pair.compared.settings.get('workers')}: their steps are not the same thing."
    )


def _scatter(found: Sequence[Pair], sources: Sequence[object]) -> Markup:
    ends = [e for p in found for e in (p.option.low_seconds, p.option.high_seconds, p.measured.low, p.measured.high)]
    middles = [m for pair in found for m in (pair.option.step_seconds, pair.measured.middle)]
    values = [value for value in (*ends, *middles) if math.isfinite(value)]
    log = wide_apart(values)
    x_axis = axis_for(values, "seconds", "measured step", log=log, zero=not log)
    y_axis = axis_for(values, "seconds", "predicted step", log=log, zero=not log)
    alt = "Predicted against measured step. " + "; ".join(
        f"{p.option.strategy}: {with_unit(p.option.step_seconds, 'seconds')} predicted, "
        f"{with_unit(p.measured.middle, 'seconds')} measured"
        for p in found
    )

    def picture(width: float) -> Markup:
        frame = Frame(x_axis, y_axis, width, 0.8 * width)
        parts = [frame.axes(), path([(frame.x(v), frame.y(v)) for v in (x_axis.low, x_axis.high)], "aim", "4 4")]
        for place, pair in enumerate(found):
            o, m = pair.option, pair.measured
            x, y = frame.x(m.middle), frame.y(o.step_seconds)
            parts.append(segment(x, frame.y(o.low_seconds), x, frame.y(o.high_seconds), "whisker"))
            if m.low < m.high:
                parts.append(segment(frame.x(m.low), y, frame.x(m.high), y, "whisker"))
            predicted, measured = with_unit(o.step_seconds, "seconds"), with_unit(m.middle, "seconds")
            tip = f"{o.strategy}: predicted {predicted}, measured {measured}"
            parts.append(mark(x, y, place, tip))
        return drawing(width, frame.height, alt, *parts)

    names = [(swatch(place), _label(pair, len(sources) > 1)) for place, pair in enumerate(found)]
    caption = "On the dashed line a prediction is right; above it, a step was predicted to be slower than it is."
    return el("div", figure(picture(WIDE), picture(NARROW), caption), legend(names), class_="pair scatter")


def _label(pair: Pair, several: bool) -> str:
    return f"{pair.option.strategy} ({pair.compared.folder.name})" if several else pair.option.strategy


def _table(found: Sequence[Pair], anchor: str) -> Markup:
    unit = unit_for([pair.measured.middle for pair in found], "seconds")
    columns = [
        Column("strategy", "code"),
        Column(unit.heading("predicted"), about="[uncertainty]"),
        Column(unit.heading("measured"), about="[spread]"),
        Column("error", about="of the predicted step, over the measured one"),
        Column("within", "text", "whether the measured step lies in the prediction's uncertainty"),
    ]
    rows = [
        [
            Cell(_label(pair, False), place),
            Cell(spread(unit, o.step_seconds, o.low_seconds, o.high_seconds), o.step_seconds),
            Cell(spread(unit, pair.measured.middle, pair.measured.low, pair.measured.high), pair.measured.middle),
            Cell(f"{100 * pair.error:+.1f} %", abs(pair.error)),
            Cell("yes" if pair.inside else "no", float(pair.inside), "good" if pair.inside else "bad"),
        ]
        for place, pair in enumerate(found)
        for o in (pair.option,)
    ]
    headings = ["strategy", "predicted_seconds", "predicted_low", "predicted_high", "measured_seconds", "measured_low"]
    headings += ["measured_high", "error", "within", "plan", "comparison"]
    content = as_csv(
        headings,
        [
            [
                *(p.option.strategy, p.option.step_seconds, p.option.low_seconds, p.option.high_seconds),
                *(
                    p.measured.middle,
                    p.measured.low,
                    p.measured.high,
                    p.error,
                    p.inside,
                    p.planned.path,
                    p.compared.folder,
                ),
            ]
            for p in found
        ],
    )
    return table(f"Predicted and measured steps of {_several(len(found))}", columns, rows, content, f"{anchor}.csv")
