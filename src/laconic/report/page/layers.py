"""The recommended iteration by tensor: its size, and when its gradient is ready, leaves and arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from laconic.planner.values import Layer
from laconic.report.page.axes import axis_for
from laconic.report.page.html import Cell, Child, Column, Markup, as_csv, el, join, table
from laconic.report.page.svg import drawing, figure, legend, mark, rect, segment, tail, text
from laconic.report.page.units import unit_for, with_unit

WIDE, NARROW = 820.0, 340.0
_MOST, _ROW = 48, 17.0


def block(layers: Sequence[Layer], name: str) -> Markup:
    """Return a picture of the largest tensors and a table of all."""
    if not layers:
        return Markup("")
    largest = sorted(range(len(layers)), key=lambda k: -layers[k].nbytes)[:_MOST]
    drawn = sorted((layers[k] for k in largest), key=lambda layer: layer.ready_seconds)
    last = max(layers, key=lambda layer: layer.arrives_seconds)
    alt = (
        f"{len(layers)} tensors in the order in which their gradients are ready, from "
        f"{with_unit(min(layer.ready_seconds for layer in layers), 'seconds')} after backward began; the last to "
        f"arrive is {last.name}, after {with_unit(last.arrives_seconds, 'seconds')}."
    )
    wide, narrow = (_picture(drawn, width, alt) for width in (WIDE, NARROW))
    signs = [
        (_sign(rect(1, 2, 28, 10, "p-size")), "size"),
        (_sign(mark(15, 7, 0)), "gradient is ready"),
        (_sign(segment(1, 7, 29, 7, "held")), "waits to leave"),
        (_sign(rect(1, 2, 28, 10, "p-exposed")), "in flight"),
    ]
    caption = f"Seconds from the start of backward; the {len(drawn)} largest of {len(layers)} tensors."
    if len(drawn) == len(layers):
        caption = "Seconds from the start of backward."
    details = el("details", el("summary", f"All {len(layers)} tensors as a table"), _table(layers, name))
    return el("div", el("h3", "Layers"), figure(wide, narrow, caption, legend(signs)), details, class_="block")


def _picture(layers: Sequence[Layer], width: float, alt: str) -> Markup:
    longest = 6.7 * max(len(layer.name) for layer in layers) + 8
    label, size = (min(longest, 320.0), 80.0) if width > NARROW else (min(longest, 100.0), 40.0)
    left, right = label + size + 12, 12.0
    axis = axis_for([layer.arrives_seconds for layer in layers], "seconds", "from the start of backward", zero=True)
    most = max(layer.nbytes for layer in layers) or 1

    def x(seconds: float) -> float:
        return left + axis.at(seconds) * (width - left - right)

    height = len(layers) * _ROW + 30
    parts: list[Child] = []
    for value, shown in axis.ticks(max(2, int((width - left) / 90))):
        parts += [segment(x(value), 2, x(value), height - 24, "grid")]
        parts += [text(x(value), height - 8, f"{shown} {axis.unit.name}", anchor="middle")]
    for place, layer in enumerate(layers):
        top, middle = place * _ROW + 4, place * _ROW + 4 + _ROW / 2 - 1
        size_text = with_unit(layer.nbytes, "bytes")
        tip = (
            f"{layer.name}: {size_text}; ready {with_unit(layer.ready_seconds, 'seconds')}, leaves "
            f"{with_unit(layer.leaves_seconds, 'seconds')}, arrives {with_unit(layer.arrives_seconds, 'seconds')}"
        )
        width_in_flight = x(layer.arrives_seconds) - x(layer.leaves_seconds)
        parts += [
            text(1, middle + 4, tail(layer.name, int(label / 6.7)), "small", tip=layer.name),
            rect(label + 4, top + 2, size * layer.nbytes / most, _ROW - 7, "p-size", f"{layer.name}: {size_text}"),
            segment(x(layer.ready_seconds), middle, x(layer.leaves_seconds), middle, "held"),
            rect(x(layer.leaves_seconds), top + 2, max(width_in_flight, 1.0), _ROW - 7, "p-exposed", tip),
            mark(x(layer.ready_seconds), middle, 0, tip),
        ]
    return drawing(width, height, alt, *parts)


def _table(layers: Sequence[Layer], name: str) -> Markup:
    times = [layer.arrives_seconds for layer in layers]
    unit, size = unit_for(times, "seconds"), unit_for([layer.nbytes for layer in layers], "bytes")
    columns = [
        Column("tensor", "code"),
        Column(size.heading("size")),
        *(Column(unit.heading(what)) for what in ("backward", "ready", "leaves", "arrives")),
    ]
    rows = [
        [
            Cell(layer.name),
            Cell(size.of(layer.nbytes), layer.nbytes),
            *(
                Cell(unit.of(seconds), seconds)
                for seconds in (
                    layer.backward_seconds,
                    layer.ready_seconds,
                    layer.leaves_seconds,
                    layer.arrives_seconds,
                )
            ),
        ]
        for layer in layers
    ]
    names = [field.name for field in fields(Layer)]
    content = as_csv(names, [list(asdict(layer).values()) for layer in layers])
    return table("Tensors of the recommended iteration", columns, rows, content, f"{name}-layers.csv")


def _sign(piece: Markup) -> Markup:
    return el("svg", join([piece]), viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")
