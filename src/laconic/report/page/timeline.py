"""The timeline as lanes of computing, waiting and messages of each worker; widths are percentages, so that it zooms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from laconic.report.page.axes import axis_for
from laconic.report.page.html import Child, Markup, el, join
from laconic.report.page.svg import legend, rect
from laconic.report.page.units import with_unit
from laconic.runtime.timeline import Span, Timeline

SPANS = 1500
"""The most spans that are drawn; more would make the page slow."""

_WORKERS, _LANES = 8, 3
_LANE, _GAP, _HEAD = 17.0, 9.0, 24.0
_KINDS = {"compute": "p-computing", "waiting": "p-waiting", "communication": "p-exposed"}
_SHADES = {"forward": "p-computing", "backward": "p-backward", "step": "p-step"}


@dataclass(frozen=True)
class Window:
    """The part of a timeline that is drawn."""

    spans: tuple[Span, ...]
    begin_seconds: float
    end_seconds: float
    workers: tuple[int, ...]
    all_spans: int
    all_workers: int

    @property
    def whole(self) -> bool:
        return len(self.spans) == self.all_spans

    def description(self) -> str:
        """Return a sentence on which part of the timeline is drawn."""
        if self.whole:
            return f"All {self.all_spans:,} spans of {self.all_workers} workers."
        return (
            f"Drawn: {len(self.spans):,} of {self.all_spans:,} spans, from {with_unit(self.begin_seconds, 'seconds')} "
            f"to {with_unit(self.end_seconds, 'seconds')}, of {len(self.workers)} of {self.all_workers} workers. All "
            "are in trace.json, which ui.perfetto.dev draws."
        )


def window(timeline: Timeline, most: int = SPANS) -> Window:
    """Return all of a short timeline, else at most `most` spans of the first workers from their third step on."""
    workers = tuple(timeline.workers[:_WORKERS])
    chosen = sorted((s for s in timeline.spans if s.worker in workers), key=lambda s: (s.begin_seconds, s.end_seconds))
    if len(chosen) > most:
        third = [s.begin_seconds for s in chosen if s.arguments.get("step") == 2 and s.track != "communication"]
        later = [s for s in chosen if s.begin_seconds >= min(third, default=0.0)]
        chosen = (later if len(later) >= most else chosen[-most:])[:most]
    begin = min((s.begin_seconds for s in chosen), default=0.0)
    end = max((s.end_seconds for s in chosen), default=0.0)
    return Window(tuple(chosen), begin, end, workers, len(timeline.spans), len(timeline.workers))


def lanes(spans: Iterable[Span], most: int = _LANES) -> list[list[Span]]:
    """Distribute spans over as few lanes as their overlaps need; beyond `most` lanes, the last one has overlaps."""
    found: list[list[Span]] = []
    for span in spans:
        free = next((lane for lane in found if lane[-1].end_seconds <= span.begin_seconds), None)
        if free is None and len(found) < most:
            found.append(free := [])
        (found[-1] if free is None else free).append(span)
    return found


def block(timeline: Timeline) -> Markup:
    """Return the drawn timeline with its zoom buttons and legend."""
    shown = window(timeline)
    if not shown.spans or shown.end_seconds <= shown.begin_seconds:
        return Markup("")
    names: list[Markup] = []
    drawn: list[Child] = []
    top = _HEAD
    for worker in shown.workers:
        own = [span for span in shown.spans if span.worker == worker]
        busy = [span for span in own if span.track != "communication"]
        messages = lanes(span for span in own if span.track == "communication")
        names.append(_name(f"worker {worker}", top))
        for lane in ([busy] if busy else []) + messages:
            drawn += [_span(span, shown, top) for span in lane]
            top += _LANE
        top += _GAP
    height = top + 2
    kinds = sorted({_class(span) for span in shown.spans})
    alt = (
        f"Timeline of {len(shown.workers)} workers from {with_unit(shown.begin_seconds, 'seconds')} to "
        f"{with_unit(shown.end_seconds, 'seconds')}: each worker computes or waits in its first lane; its messages are "
        "below."
    )
    picture = el("svg", _ruler(shown, height), *drawn, role="img", aria_label=alt, height=height, class_="lanes")
    buttons = el(
        "div",
        *(
            el("button", sign, type="button", class_="zoom", data_zoom=factor, aria_label=what)
            for sign, factor, what in (("−", "0.5", "Zoom out"), ("+", "2", "Zoom in"))
        ),
        class_="zooms",
    )
    box = el("div", picture, class_="scroll", tabindex="0", role="region", aria_label="Timeline, scrolls sideways")
    gutter = el("div", *names, class_="gutter", style=f"height:{height:.0f}px", aria_hidden="true")
    return el(
        "div",
        el("h3", "Timeline"),
        buttons,
        el("div", gutter, box, class_="timeline"),
        legend([(_sign(kind), _LEGEND[kind]) for kind in _LEGEND if kind in kinds]),
        el("p", shown.description(), class_="note"),
        class_="block",
    )


_LEGEND = {
    "p-computing": "computing (forward)",
    "p-backward": "backward",
    "p-step": "optimizer",
    "p-waiting": "waiting for messages",
    "p-exposed": "message",
}


def _class(span: Span) -> str:
    if span.track == "compute":
        return _SHADES.get(str(span.arguments.get("part")), "p-computing")
    return _KINDS.get(span.track, "p-exposed")


def _span(span: Span, shown: Window, top: float) -> Markup:
    whole = shown.end_seconds - shown.begin_seconds
    tip = f"{span.name}, {with_unit(span.seconds, 'seconds')} from {with_unit(span.begin_seconds, 'seconds')} on"
    x, width = (span.begin_seconds - shown.begin_seconds) / whole, span.seconds / whole
    return el(
        "rect",
        el("title", tip),
        x=f"{x:.4%}",
        y=top,
        width=f"{width:.4%}",
        height=_LANE - 2,
        class_=_class(span),
    )


def _ruler(shown: Window, height: float) -> Markup:
    axis = axis_for([shown.begin_seconds, shown.end_seconds], "seconds", "", room=0.0)
    parts: list[Child] = []
    for value, text in axis.ticks(16):
        place = f"{axis.at(value):.4%}"
        parts.append(el("line", x1=place, x2=place, y1=16.0, y2=height, class_="grid"))
        parts.append(el("text", f"{text} {axis.unit.name}", x=place, y=12.0, dx="3", class_="tick"))
    return join(parts)


def _name(name: str, top: float) -> Markup:
    return el("span", name, style=f"top:{top:.0f}px")


def _sign(kind: str) -> Markup:
    return el("svg", rect(1, 1, 28, 12, kind), viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")
