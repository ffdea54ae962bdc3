"""Curves of time over bandwidth: how long each method takes for what DDP learns in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from laconic.frontier.map import Cell, Map
from laconic.frontier.shapes import write_size
from laconic.report.page.axes import Axis, axis_for
from laconic.report.page.html import Markup, el
from laconic.report.page.svg import COLOURS, Frame, colour, dash, drawing, figure, legend, mark, path, swatch
from laconic.report.page.units import number, with_unit
from laconic.units import write_rate

WIDE, NARROW = 560.0, 340.0


@dataclass(frozen=True)
class TimeCurve:
    """A method's times: (bits per second, seconds, low, high)."""

    name: str
    place: int
    points: tuple[tuple[float, float, float, float], ...]


def block(drawn: Map, sizes: Sequence[float], shown: Sequence[str]) -> Markup:
    """Return a plot for each of these sizes, with DDP and the given methods."""
    names = list(shown)[: COLOURS - 1]
    plots = [_plot(curves(drawn, size, names), size) for size in sizes]
    entries = [(swatch(place), name) for place, name in enumerate(["DDP, 16 bits", *names])]
    note = (
        "Seconds for the work of one step of DDP: a step's time over the DDP-equivalent share of its tokens, so that "
        "curves are in the order of the time to DDP's loss. Bands are 95 % intervals."
    )
    return el(
        "div",
        el("h3", "Time over bandwidth"),
        el("div", *plots, class_="pair"),
        legend(entries),
        el("p", note, class_="note"),
        class_="block",
    )


def curves(drawn: Map, size: float, names: Sequence[str]) -> list[TimeCurve]:
    """Return the curves of DDP and of these methods at a size of the map's."""
    cells = [cell for cell in drawn.cells if cell.size == size]
    ddp = tuple((cell.bits_per_second, *(cell.ddp.seconds,) * 3) for cell in cells)
    return [TimeCurve("DDP, 16 bits", 0, ddp), *(_curve(cells, name, place) for place, name in enumerate(names, 1))]


def _curve(cells: Sequence[Cell], name: str, place: int) -> TimeCurve:
    points = []
    for cell in cells:
        gain = next(offer.speed_up for offer in cell.offers if offer.name == name)
        middle = cell.ddp.seconds / gain.middle
        ends = (middle, middle) if isnan(gain.low) else (cell.ddp.seconds / gain.high, cell.ddp.seconds / gain.low)
        points.append((cell.bits_per_second, middle, *ends))
    return TimeCurve(name, place, tuple(points))


def _plot(found: Sequence[TimeCurve], size: float) -> Markup:
    gigabits = [point[0] / 1e9 for curve in found for point in curve.points]
    seconds = [value for curve in found for point in curve.points for value in point[1:]]
    x_axis = axis_for(gigabits, "plain", "Gb/s", log=True)
    y_axis = axis_for(seconds, "seconds", "time", log=True)
    title = f"{write_size(size)} parameters"
    ends = "; ".join(f"{curve.name} {with_unit(curve.points[0][1], 'seconds')}" for curve in found)
    alt = f"Time over bandwidth at {title}. On the slowest network: {ends}."
    wide, narrow = (_picture(found, x_axis, y_axis, width, alt) for width in (WIDE, NARROW))
    return figure(wide, narrow, title)


def _picture(found: Sequence[TimeCurve], x_axis: Axis, y_axis: Axis, width: float, alt: str) -> Markup:
    frame = Frame(x_axis, y_axis, width, 320.0 if width == WIDE else 260.0)
    parts = [frame.axes()]
    for curve in found:
        ring = [(frame.x(x / 1e9), frame.y(high)) for x, _, _, high in curve.points]
        ring += [(frame.x(x / 1e9), frame.y(low)) for x, _, low, _ in reversed(curve.points)]
        if curve.place:
            parts.append(path(ring, f"band {colour(curve.place)}", close=True))
    for curve in found:
        line = [(frame.x(x / 1e9), frame.y(y)) for x, y, _, _ in curve.points]
        parts.append(path(line, f"ln {colour(curve.place)}", dash(curve.place)))
        for x, y, low, high in curve.points[:: 2 if width == WIDE else 4]:
            spread = f" [{number(low)}–{number(high)}]" if low < high else ""
            tip = f"{curve.name}: {number(y)}{spread} s at {write_rate(x)}"
            parts.append(mark(frame.x(x / 1e9), frame.y(y), curve.place, tip))
    return drawing(width, frame.height, alt, *parts)
