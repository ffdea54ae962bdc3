"""The table of a plan's ways to shard the model, beside plain data parallelism, with the memory of a GPU."""

from __future__ import annotations

from laconic.planner.values import Advice, ShardedOption
from laconic.report.page.html import Cell, Column, Markup, as_csv, el, join, table
from laconic.report.page.units import MISSING, times, unit_for

_PARTS = ("weights", "gradients", "optimizer", "gathered", "copies", "errors", "activations")


def block(advice: Advice, anchor: str) -> Markup:
    """Return the heading and the table, or nothing where the GPU's memory is not known."""
    options = advice.sharded
    if not options:
        return Markup("")
    step = unit_for([option.step_seconds for option in options], "seconds")
    sent = unit_for([option.sent_bytes for option in options], "bytes")
    memory = unit_for([option.memory.total for option in options], "bytes")
    columns = [
        Column("sharded", "text"),
        Column(step.heading("step"), about="predicted, with all that can overlap"),
        Column(step.heading("at most"), about="where no message overlaps anything"),
        Column("speed-up", about="over data parallelism with 16-bit gradients"),
        Column(sent.heading("sent"), about="by a worker in a step"),
        Column(sent.heading("leaves a host"), about="in a step"),
        *(Column(memory.heading(part)) for part in _PARTS),
        Column(memory.heading("memory"), about="of each GPU"),
        Column("fits", "text"),
        Column("mathematics", "text"),
    ]
    rows = [
        [
            Cell(option.title, place),
            Cell(step.of(option.step_seconds), option.step_seconds),
            Cell(step.of(option.serial_seconds), option.serial_seconds),
            Cell(times(option.speed_up), option.speed_up),
            Cell(sent.of(option.sent_bytes), option.sent_bytes),
            Cell(sent.of(option.leaving_bytes or None), option.leaving_bytes),
            *(Cell(memory.of(getattr(option.memory, part)), getattr(option.memory, part)) for part in _PARTS),
            Cell(memory.of(option.memory.total), option.memory.total, "bad" if option.fits is False else None),
            Cell(_fits(option), None, "bad" if option.fits is False else None),
            Cell("the same" if option.exact else "rounds: unknown here"),
        ]
        for place, option in enumerate(options)
    ]
    title = f"Ways to shard {advice.subject}"
    return join([el("h3", "Sharded"), table(title, columns, rows, _csv(options), f"{anchor}-sharded.csv")])


def _fits(option: ShardedOption) -> str:
    return MISSING if option.fits is None else "yes" if option.fits else "does not fit"


def _csv(options: tuple[ShardedOption, ...]) -> str:
    plain = [name for name in ShardedOption.__dataclass_fields__ if name not in ("memory", "line")]
    rows = [[*(getattr(one, n) for n in plain), *(getattr(one.memory, part) for part in _PARTS)] for one in options]
    return as_csv([*plain, *(f"{part}_bytes" for part in _PARTS)], rows)
