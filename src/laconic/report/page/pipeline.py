"""The picture of a pipeline: devices downwards, time across, a bar for each task."""

from __future__ import annotations

from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.task import Op
from laconic.parallel.pipeline.timeline import Bar, Timeline
from laconic.report.page.document import document
from laconic.report.page.html import Child, Markup, as_csv, el, facts, save
from laconic.report.page.svg import colour, drawing, figure, legend, rect, text
from laconic.units import write_seconds

WIDE, NARROW = 1000.0, 340.0
_LEFT, _TOP, _ROW = 64.0, 8.0, 30.0
_NAMES = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.INPUT: "gradient of the input",
    Op.WEIGHT: "gradient of the weights",
    Op.RECOMPUTE: "forward again",
    Op.UPDATE: "update",
}
_COLOURS = {op: place for place, op in enumerate(_NAMES)}


def page(name: str, pipeline: Pipeline, times: Timeline) -> str:
    """Return a page with a pipeline's figures and its picture."""
    known = facts(
        [
            ("devices", str(pipeline.devices)),
            ("stages", str(pipeline.stages)),
            ("microbatches", str(pipeline.microbatches)),
            ("time", write_seconds(times.seconds)),
            ("idle", f"{times.bubble:.1%} of all devices' time"),
            ("microbatches held", f"{min(pipeline.peak_in_flight):g} to {max(pipeline.peak_in_flight):g} by a device"),
        ]
    )
    about = f"A pipeline as data: {pipeline.devices} devices, {pipeline.microbatches} microbatches"
    footer = "The order is verified: each pass once, none before what it needs, and it ends."
    content = el("section", el("h2", name), known, _block(pipeline, times), id="pipeline")
    return document(name, about, [("pipeline", name, content)], footer)


def _block(pipeline: Pipeline, times: Timeline) -> Markup:
    wide, narrow = (_picture(pipeline, times, width) for width in (WIDE, NARROW))
    used = [op for op in _NAMES if any(bar.task.op is op for row in times.bars for bar in row)]
    signs = [(_sign(op), _NAMES[op]) for op in used]
    rows = [
        (device, bar.task.op.value, bar.task.stage, bar.task.microbatch, bar.begin, bar.end)
        for device, row in enumerate(times.bars)
        for bar in row
    ]
    csv = as_csv(("device", "task", "stage", "microbatch", "begin", "end"), rows)
    below = el("div", legend(signs), save(csv, "tasks.csv", "Tasks as CSV"))
    return figure(wide, narrow, "What each device does when", below)


def _sign(op: Op) -> Markup:
    box = rect(1, 2, 28, 10, f"cell {colour(_COLOURS[op])}")
    return el("svg", box, viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")


def _picture(pipeline: Pipeline, times: Timeline, width: float) -> Markup:
    height = _TOP + _ROW * pipeline.devices + 24
    scale = (width - _LEFT - 8) / (times.seconds or 1.0)
    parts: list[Child] = []
    for device, row in enumerate(times.bars):
        top = _TOP + _ROW * device
        parts.append(text(2, top + 17, f"device {device}", "label"))
        for bar in row:
            parts += _drawn(bar, _LEFT + bar.begin * scale, top, (bar.end - bar.begin) * scale)
    parts.append(text(_LEFT, height - 6, "0"))
    parts.append(text(width - 8, height - 6, write_seconds(times.seconds), anchor="end"))
    return drawing(width, height, f"The tasks of {pipeline.name} on {pipeline.devices} devices", *parts)


def _drawn(bar: Bar, left: float, top: float, wide: float) -> list[Child]:
    task = bar.task
    which = f"microbatch {task.microbatch}, " if task.microbatch >= 0 else ""
    tip = f"{_NAMES[task.op]}: {which}stage {task.stage}, {write_seconds(bar.begin)} to {write_seconds(bar.end)}"
    box = rect(left + 0.5, top + 2, wide - 1, _ROW - 6, f"cell {colour(_COLOURS[task.op])}", tip)
    if wide < 14 or task.microbatch < 0:
        return [box]
    return [box, text(left + wide / 2, top + 17, str(task.microbatch), anchor="middle")]
