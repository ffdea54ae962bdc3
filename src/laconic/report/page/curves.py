"""Plots of metrics against time and bytes: a line for each row or run, with a band where there are several seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from laconic.experiments.outcome import Logged
from laconic.report.page.axes import Axis, axis_for, wide_apart
from laconic.report.page.html import Markup, as_csv, el, save
from laconic.report.page.svg import Frame, colour, dash, drawing, figure, legend, mark, path, swatch
from laconic.report.page.units import Kind, number, with_unit

WIDE, NARROW = 560.0, 340.0
_POINTS = 160  # of a line
_MARKS = 9  # on a line
_METRICS = 3
_CSV_ROWS = 3000
_LAST = ("batch",)  # logged for the rules, seldom looked at

Logs = Sequence[tuple[str, Sequence[Sequence[Logged]]]]
"""For each row or run its name and, for each seed, what it logged."""


@dataclass(frozen=True)
class Curve:
    """One line of a plot: points (x, y, low, high) in the order of x; with one seed, low and high equal y."""

    name: str
    place: int
    points: tuple[tuple[float, float, float, float], ...]
    seeds: int = 1


def curves(logs: Logs, over: Callable[[Logged], float | None], metric: str) -> list[Curve]:
    """Return a curve per row with mean and range over seeds at each step; values that are not finite are left out."""
    found: list[Curve] = []
    for place, (name, seeds) in enumerate(logs):
        at: list[tuple[int, float, float]] = []
        for logged in seeds:
            for one in logged:
                x, y = over(one), one.values.get(metric)
                if x is not None and y is not None and math.isfinite(x) and math.isfinite(y):
                    at.append((one.step, x, y))
        points: list[tuple[float, float, float, float]] = []
        for _, group in groupby(sorted(at), key=lambda entry: entry[0]):
            same = list(group)
            ys = [y for _, _, y in same]
            points.append((sum(x for _, x, _ in same) / len(same), sum(ys) / len(ys), min(ys), max(ys)))
        if points:
            found.append(Curve(name, place, tuple(points), len(seeds)))
    return found


def thinned(points: Sequence[tuple[float, float, float, float]], count: int = _POINTS) -> list[tuple[float, ...]]:
    """Return at most `count` points, the least and the largest of every stretch, which keep a long line's shape."""
    if len(points) <= count:
        return list(points)
    stretches = count // 2 - 1
    kept = {0, len(points) - 1}
    for k in range(stretches):
        stretch = range(k * len(points) // stretches, (k + 1) * len(points) // stretches)
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def metrics_of(logs: Logs) -> tuple[list[str], int]:
    """Return the metrics to draw, losses first and then in the order of logging, and how many are left out."""
    order = sorted(_names(logs), key=lambda name: (name in _LAST, "loss" not in name.lower()))
    return order[:_METRICS], max(0, len(order) - _METRICS)


def section(logs: Logs, filename: str, target: tuple[str, float] | None = None) -> Markup:
    """Return plots of every metric over time and, where bytes were counted, over what one worker sent and received."""
    drawn, left_out = metrics_of(logs)
    pictures: list[Markup] = []
    for metric in drawn:
        aim = target[1] if target is not None and target[0] == metric else None
        over_time: Kind = "seconds"
        for what, over, of_kind in (
            ("time", lambda at: at.seconds, over_time),
            ("bytes of a worker, both directions", lambda at: at.total_bytes, "bytes"),
        ):
            found = curves(logs, over, metric)
            if found:
                pictures.append(_plot(found, metric, what, of_kind, aim))
    if not pictures:
        return Markup("")
    parts = [el("div", *pictures, class_="pair")]
    parts.append(legend([(swatch(place), name) for place, (name, _) in enumerate(logs)]))
    several = max((len(seeds) for _, seeds in logs), default=1)
    notes = [f"Lines are means over {several} seeds, bands reach from the least to the largest." if several > 1 else ""]
    notes += [f"{left_out} more metrics were logged; the CSV has them." if left_out else ""]
    notes += ["The dashed line is the target." if target is not None and target[0] in drawn else ""]
    content, count, every = _csv(logs)
    notes += [f"The CSV has every {every}th of {count:,} points." if every > 1 else ""]
    if any(notes):
        parts.append(el("p", " ".join(filter(None, notes)), class_="note"))
    parts.append(save(content, filename, "Points as CSV"))
    return el("div", el("h3", "Curves"), *parts, class_="block")


def _plot(found: Sequence[Curve], metric: str, over: str, kind: Kind, target: float | None) -> Markup:
    xs = [x for curve in found for x, *_ in curve.points]
    ends = [curve.points[-1][0] for curve in found]
    ys = [y for curve in found for _, _, *span in curve.points for y in span]
    x_axis = axis_for(xs, kind, over, log=wide_apart(ends) and min(xs) > 0, zero=True, room=0.02)
    y_axis = axis_for([*ys, *([] if target is None else [target])], "plain", metric, log=wide_apart(ys))
    alt = f"{metric} against {over}. " + "; ".join(
        f"{curve.name} ends at {number(curve.points[-1][1])} after {with_unit(curve.points[-1][0], kind)}"
        for curve in found
    )
    wide, narrow = (_picture(found, x_axis, y_axis, kind, width, alt, target) for width in (WIDE, NARROW))
    return figure(wide, narrow, f"{metric} against {over.partition(' of')[0] if kind == 'bytes' else over}")


def _picture(
    found: Sequence[Curve], x_axis: Axis, y_axis: Axis, kind: Kind, width: float, alt: str, target: float | None
) -> Markup:
    frame = Frame(x_axis, y_axis, width, 320.0 if width > NARROW else 260.0)
    parts = [frame.axes()]
    if target is not None:
        parts.append(path([(frame.left, frame.y(target)), (width - frame.right, frame.y(target))], "aim", "4 4"))
    for curve in found:
        points = thinned(curve.points)
        if curve.seeds > 1 and len(points) > 1:
            ring = [(frame.x(x), frame.y(high)) for x, _, _, high in points]
            ring += [(frame.x(x), frame.y(low)) for x, _, low, _ in reversed(points)]
            parts.append(path(ring, f"band {colour(curve.place)}", close=True))
    for curve in found:
        points = thinned(curve.points)
        parts.append(
            path([(frame.x(p[0]), frame.y(p[1])) for p in points], f"ln {colour(curve.place)}", dash(curve.place))
        )
        for x, y, low, high in _some(points, _MARKS if width > NARROW else _MARKS // 2):
            spread = f" [{number(low)}–{number(high)}]" if low < high else ""
            parts.append(
                mark(frame.x(x), frame.y(y), curve.place, f"{curve.name}: {number(y)}{spread} at {with_unit(x, kind)}")
            )
    return drawing(width, frame.height, alt, *parts)


def _some(points: Sequence[tuple[float, ...]], count: int) -> Iterable[tuple[float, ...]]:
    """Return about `count` evenly spaced points that get marks, the last one among them."""
    stride = max(1, math.ceil(len(points) / count))
    return reversed(points[::-1][::stride])


def _names(logs: Logs) -> list[str]:
    return list(dict.fromkeys(name for _, seeds in logs for run in seeds for at in run for name in at.values))


def _csv(logs: Logs) -> tuple[str, int, int]:
    """Return the CSV of means and ranges over seeds, the number of points, and the stride at which they were kept."""
    names = _names(logs)
    several = any(len(seeds) > 1 for _, seeds in logs)
    ends = ("", "_low", "_high") if several else ("",)
    rows: list[list[object]] = []
    for name, seeds in logs:
        steps = sorted(((at.step, at) for run in seeds for at in run), key=lambda entry: entry[0])
        for step, group in groupby(steps, key=lambda entry: entry[0]):
            same = [at for _, at in group]
            row: list[object] = [name, len(same), step, _mean([at.seconds for at in same])]
            row.append(_mean([at.total_bytes for at in same if at.total_bytes is not None]))
            for metric in names:
                values = [at.values[metric] for at in same if metric in at.values]
                row += [_mean(values), *((min(values), max(values)) if values else (None, None))][: len(ends)]
            rows.append(row)
    every = max(1, math.ceil(len(rows) / _CSV_ROWS))
    headings = ["row", "runs", "step", "seconds", "total_bytes", *(f"{name}{end}" for name in names for end in ends)]
    short = [[float(f"{cell:.7g}") if isinstance(cell, float) else cell for cell in row] for row in rows[::every]]
    return as_csv(headings, short), len(rows), every


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
