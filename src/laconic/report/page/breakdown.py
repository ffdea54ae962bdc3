"""Where a step's time goes: stacked bars of computing, coding and exposed communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from laconic.experiments.measure import Line
from laconic.planner.values import Advice
from laconic.report.page.axes import axis_for
from laconic.report.page.html import Child, Markup, el, join
from laconic.report.page.svg import drawing, figure, legend, rect, segment, shortened, text
from laconic.report.page.units import with_unit
from laconic.runtime.timeline import Timeline

Part = Literal["computing", "coding", "exposed", "beyond"]

_NAMES: dict[Part, str] = {
    "computing": "computing",
    "coding": "coding and the rest",
    "exposed": "exposed communication",
    "beyond": "beyond computing, not broken down",
}
WIDE, NARROW = 820.0, 340.0
_ROW, _MOST_BARS = 46.0, 24


@dataclass(frozen=True)
class Bar:
    """One step's time in parts, with the ends of its uncertainty or spread."""

    name: str
    parts: dict[Part, float]
    low: float | None = None
    high: float | None = None
    aside: str = ""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def of_plan(advice: Advice) -> list[Bar]:
    """Return a bar for each option of a plan, the baseline among them."""
    options = [*advice.options, *([] if advice.baseline in advice.options else [advice.baseline])]
    return [
        Bar(
            option.strategy,
            {"computing": option.computing_seconds, "coding": option.coding_seconds, "exposed": option.exposed_seconds},
            option.low_seconds,
            option.high_seconds,
            "the baseline" if option == advice.baseline else f"{option.speed_up:.2f}× the baseline's speed",
        )
        for option in options
    ]


def of_line(line: Line, baseline: bool = False) -> Bar | None:
    """Return the bar of a measured row: computing alone, the waiting that the engine measured, and the rest as coding.

    None where the row was not timed, or where no worker computed alone, so that the parts are unknown.
    """
    if line.step_seconds is None or line.computing_seconds is None:
        return None
    step = line.step_seconds.value
    computing = min(line.computing_seconds.middle, step.middle)
    beyond = step.middle - computing
    parts: dict[Part, float] = {"computing": computing}
    if line.waited_seconds is None:
        parts["beyond"] = beyond
    else:
        exposed = min(line.waited_seconds.middle, beyond)
        parts |= {"coding": beyond - exposed, "exposed": exposed}
    ratio = line.step_seconds.ratio
    aside = "" if ratio is None or not ratio.middle else f"{1 / ratio.middle:.2f}× the baseline's speed"
    return Bar(line.name, parts, step.low, step.high, "the baseline" if baseline else aside)


def of_timeline(timeline: Timeline) -> list[Bar]:
    """Return a bar per worker with the median of each part over its steps; the first step, a warm-up, is left out."""
    parts: tuple[Part, ...] = ("computing", "exposed")
    seconds: dict[int, dict[int, dict[Part, float]]] = defaultdict(
        lambda: defaultdict(lambda: dict.fromkeys(parts, 0.0))
    )
    for span in timeline.spans:
        step = int(span.arguments.get("step", 0))
        if step > 0 and span.track != "communication":
            seconds[span.worker][step]["computing" if span.track == "compute" else "exposed"] += span.seconds
    return [
        Bar(f"worker {worker}", {part: median(step[part] for step in steps.values()) for part in parts})
        for worker, steps in sorted(seconds.items())
    ]


def block(bars: Sequence[Bar], heading: str, note: Child = None) -> Markup:
    """Return a block with a heading, the bars and a legend of their patterns."""
    if not bars:
        return Markup("")
    drawn = bars[:_MOST_BARS]
    used: list[Part] = [part for part in _NAMES if any(bar.parts.get(part, 0.0) > 0 for bar in drawn)]
    alt = f"{heading}. " + "; ".join(
        f"{bar.name}: {with_unit(bar.seconds, 'seconds')} ({_parts_text(bar)})" for bar in drawn
    )
    wide, narrow = (_picture(drawn, width, alt) for width in (WIDE, NARROW))
    signs = [(_sign(part), _NAMES[part]) for part in used]
    more = f" {len(bars) - len(drawn)} more are not drawn." if len(bars) > len(drawn) else ""
    notes = join([note, more]) if note or more else None
    return el(
        "div",
        el("h3", heading),
        figure(wide, narrow, below=legend(signs)),
        el("p", notes, class_="note") if notes else None,
        class_="block",
    )


def _picture(bars: Sequence[Bar], width: float, alt: str) -> Markup:
    right = 10.0
    axis = axis_for([value for bar in bars for value in (bar.seconds, bar.high or 0.0)], "seconds", "step", zero=True)

    def x(seconds: float) -> float:
        return 1 + axis.at(seconds) * (width - right)

    height = len(bars) * _ROW + 26
    parts: list[Child] = []
    for value, shown in axis.ticks(max(2, int(width / 110))):
        parts += [segment(x(value), 0, x(value), height - 22, "grid")]
        parts += [text(x(value), height - 6, f"{shown} {axis.unit.name}", anchor="start" if value == 0 else "middle")]
    for place, bar in enumerate(bars):
        top = place * _ROW
        shown = with_unit(bar.seconds, "seconds")
        aside = f"{shown} · {bar.aside}" if bar.aside and width > NARROW else shown
        letters = int((width - 7 * len(aside) - 24) / 7.4)
        parts += [text(1, top + 15, shortened(bar.name, letters), "name", tip=bar.name)]
        parts += [text(width - right, top + 15, aside, "value", "end")]
        begin = 0.0
        for part, seconds in bar.parts.items():
            tip = f"{bar.name}: {_NAMES[part]} {with_unit(seconds, 'seconds')}"
            parts += [rect(x(begin), top + 21, x(begin + seconds) - x(begin), 15, f"p-{part}", tip)]
            begin += seconds
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            tip = f"{with_unit(bar.low, 'seconds')} to {with_unit(bar.high, 'seconds')}"
            middle = top + 28.5
            ends = [segment(x(end), middle - 5, x(end), middle + 5, "whisker") for end in (bar.low, bar.high)]
            line = segment(x(bar.low), middle, x(bar.high), middle, "whisker")
            parts.append(el("g", el("title", tip), line, *ends))
    return drawing(width, height, alt, *parts)


def _parts_text(bar: Bar) -> str:
    return ", ".join(f"{_NAMES[part]} {with_unit(seconds, 'seconds')}" for part, seconds in bar.parts.items())


def _sign(part: Part) -> Markup:
    piece = rect(1, 1, 28, 12, f"p-{part}")
    return el("svg", piece, viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")
