"""The picture of the map: bandwidth across, model size upwards, in each cell the method that pays."""

from __future__ import annotations

from laconic.frontier.map import Cell, Map
from laconic.frontier.shapes import write_size
from laconic.report.page.html import Child, Markup, as_csv, el, save
from laconic.report.page.svg import colour, drawing, figure, legend, rect, segment, text
from laconic.report.page.units import number
from laconic.units import write_rate

WIDE, NARROW = 1000.0, 340.0
_LEFT, _TOP, _BOTTOM, _ROW = 62.0, 20.0, 40.0, 40.0


def signs(drawn: Map) -> dict[str, int]:
    """Return the methods that win a cell, numbered from the slowest network on; colour 0 is that of DDP."""
    winners = (cell.best.name for cell in sorted(drawn.cells, key=lambda c: c.bits_per_second) if cell.best)
    return {name: place for place, name in enumerate(dict.fromkeys(winners))}


def letter(place: int) -> str:
    """Return the letter of a method on the map."""
    return chr(ord("A") + place) if place < 26 else "?"


def block(drawn: Map) -> Markup:
    """Return the map with its legend, and a link that saves every offer of every cell as CSV."""
    known = signs(drawn)
    wide, narrow = (_picture(drawn, known, width) for width in (WIDE, NARROW))
    entries = [(_swatch(place), f"{letter(place)}: {name}") for name, place in known.items()]
    entries.append((_swatch(None), "nothing pays: DDP is the fastest, or may be, or no loss is near enough"))
    note = (
        "Figures are the lower ends of speed-ups over tuned DDP with 16-bit gradients to its own loss. Above the line "
        f"the loss is extrapolated from models of up to {write_size(drawn.measured_up_to)} parameters; a larger "
        "model's worker is several GPUs."
    )
    below = el("div", legend(entries), el("p", note, class_="note"), save(_csv(drawn), "map.csv", "Cells as CSV"))
    return figure(wide, narrow, "The fastest method to the loss of tuned DDP", below)


def _picture(drawn: Map, known: dict[str, int], width: float) -> Markup:
    rates = list(dict.fromkeys(cell.bits_per_second for cell in drawn.cells))
    sizes = list(dict.fromkeys(cell.size for cell in drawn.cells))
    across = (width - _LEFT - 6) / max(len(rates), 1)
    height = _TOP + _ROW * len(sizes) + _BOTTOM
    parts: list[Child] = [text(2, 14, "parameters", "label")]
    for row, size in enumerate(sizes):
        top = height - _BOTTOM - _ROW * (row + 1)
        parts.append(text(_LEFT - 7, top + _ROW / 2 + 4, write_size(size), anchor="end"))
        for column, rate in enumerate(rates):
            cell = drawn.cell(rate, size)
            left = _LEFT + across * column
            best = cell.best
            kind = "cell none" if best is None else f"cell {colour(known[best.name] + 1)}"
            parts.append(rect(left, top, across - 1.5, _ROW - 1.5, kind, _tip(cell)))
            if best is not None:
                sign = letter(known[best.name])
                gain = best.speed_up.low
                shown = sign if width == NARROW else f"{sign} {gain:.{0 if gain >= 9.95 else 1}f}"
                parts.append(text(left + across / 2, top + _ROW / 2 + 4, shown, "small", "middle"))
    measured = sum(size <= 1.1 * drawn.measured_up_to for size in sizes)
    line = height - _BOTTOM - _ROW * measured
    parts.append(segment(_LEFT, line - 0.75, width - 6, line - 0.75, "edge"))
    every = 2 if width == WIDE else 5
    for column in range(0, len(rates), every):
        place = _LEFT + across * (column + 0.5)
        parts.append(text(place, height - _BOTTOM + 18, write_rate(rates[column]), anchor="middle"))
    parts.append(text(width - 6, height - 4, "rate of a worker's link", "label", "end"))
    paying = sum(cell.best is not None for cell in drawn.cells)
    alt = f"A map of {len(sizes)} sizes by {len(rates)} rates; something pays in {paying} of {len(drawn.cells)} cells."
    return drawing(width, height, alt, *parts)


def _tip(cell: Cell) -> str:
    where = f"{write_rate(cell.bits_per_second)}, {write_size(cell.size)}"
    lines = [
        f"{offer.name}: {number(offer.speed_up.middle)}× [{number(offer.speed_up.low)}–"
        f"{number(offer.speed_up.high)}], loss by {offer.basis}{'' if offer.reaches else ', too far from that of DDP'}"
        for offer in cell.offers[:4]
    ]
    return "\n".join([where, *lines] if cell.best is not None else [f"{where}: nothing pays", *lines])


def _swatch(place: int | None) -> Markup:
    kind = "cell none" if place is None else f"cell {colour(place + 1)}"
    return el("svg", rect(1, 1, 28, 12, kind), viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")


def _csv(drawn: Map) -> str:
    headings = ["bits_per_second", "parameters", "sentence", "optimizer", "step_seconds", "ddp_step_seconds"]
    headings += ["sent_bytes", "tokens", "speed_up", "speed_up_low", "speed_up_high", "pays", "loss_by"]
    rows = [
        [
            *(cell.bits_per_second, cell.size, offer.method.sentence, offer.method.optimizer),
            *(f"{offer.step.seconds:.5g}", f"{cell.ddp.seconds:.5g}", f"{offer.step.sent_bytes:.5g}"),
            f"{offer.tokens.middle:.4g}",
            *(f"{end:.4g}" for end in (offer.speed_up.middle, offer.speed_up.low, offer.speed_up.high)),
            *(offer.pays, offer.basis),
        ]
        for cell in drawn.cells
        for offer in cell.offers
    ]
    return as_csv(headings, rows)
