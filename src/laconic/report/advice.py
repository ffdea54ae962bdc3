"""The output of `laconic plan`: a ranked table, a verdict and one command line to copy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from laconic.planner.plan import DEFAULT_NETWORK, plan, verify_advice
from laconic.planner.risk import DIVERGED
from laconic.planner.values import Advice, Objective, Option, PlanError
from laconic.planner.verify import read_budget
from laconic.planner.verify_results import Verified
from laconic.report.knobs_told import with_knobs
from laconic.report.page.units import number, unit_for, with_unit

_COLUMNS = (
    *("rank", "strategy", "step", "computing", "coding", "exposed", "likely", "speed", "sent", "memory"),
    *("mathematics", "loss"),
)
_SHARDED = (
    *("sharded", "step", "at most", "coding", "exposed", "speed", "sent", "leaves a host"),
    *("state", "kept", "activations", "memory", "mathematics"),
)
_FOR_WIDE, _WIDE = ("computing", "likely", "memory"), 120


class _Amount(NamedTuple):
    """A column of its own for an objective: its heading, the option's field, and how many steps it is of."""

    heading: str
    field: str
    steps: int


_AMOUNTS = {"cost": _Amount("$/1000 steps", "dollars", 1000), "energy": _Amount("joules", "joules", 1)}
_PIPED = 160  # columns, where standard output is no terminal


def run(subject: str, arguments: Sequence[str], verify: str | None, as_json: bool, **asked: Any) -> None:
    """Plan with the options of the command line, verify the advice if asked to, and print both."""
    budget = None if verify is None else read_budget(verify)
    if asked["objective"] not in get_args(Objective):
        raise PlanError(f"--objective {asked['objective']} is none: write {', '.join(get_args(Objective))}")
    asked["loss_budget"] = read_share(asked["loss_budget"])
    asked["slowness"] = _factors(asked["slowness"])
    advice = plan(subject, *arguments, **asked)
    verified = None
    if budget is not None:
        verified = _verified(advice, subject, arguments, asked["network"] or DEFAULT_NETWORK, budget)
    if as_json:
        sys.stdout.write(advice.to_json())
        return
    show(advice)
    if verified is not None:
        show_verified(verified)


def read_share(text: str) -> float:
    """Read a share that is written as a percentage ("0.5%") or as a fraction ("0.005")."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise PlanError(f'"{text}" is no share: write a loss budget as 0.5% or 0.005') from None


def show(advice: Advice, console: Console | None = None) -> None:
    """Print the priced strategies as a table, then the verdict, its notes and the line to copy."""
    console = console or Console(width=None if sys.stdout.isatty() else _PIPED)
    console.print(
        Text(
            f"{advice.subject}: {advice.parameters:,} parameters in {advice.tensors} tensors, {advice.workers} "
            f"workers, network {advice.network}; strategies priced: {advice.priced}."
        ),
        soft_wrap=True,
    )
    wide = console.width >= _WIDE
    headings = [name for name in _COLUMNS if wide or name not in _FOR_WIDE]
    more = _AMOUNTS.get(advice.objective)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in [*headings, *([more.heading] if more else [])]:
        left = heading in ("strategy", "mathematics")
        table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    base = advice.baseline
    for option in (*advice.options, base):
        cells = _cells(option, base)
        own = [] if more is None else [number(more.steps * getattr(option, more.field))]
        row = map(Text, [*(cells[name] for name in headings), *own])
        table.add_row(*row, style="dim" if option is base else "")
    console.print(table)
    if advice.sharded:
        _show_sharded(advice, console)
    console.print(Text(advice.verdict), soft_wrap=True)
    for warning in advice.warnings:
        console.print(Text(f"Warning: {warning}.", style="yellow"), soft_wrap=True)
    for note in advice.notes:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    if advice.line:
        console.print(Text(f"\n{advice.line}"), soft_wrap=True)


def _show_sharded(advice: Advice, console: Console) -> None:
    """Print plain data parallelism and the ways to shard the model, with the memory of a GPU."""
    left = "" if advice.gpu_bytes is None else f", of which {_gib(advice.gpu_bytes)} are left for a model"
    console.print(Text(f"\nSharded, with the memory of each GPU{left}:"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _SHARDED:
        left_side = heading in ("sharded", "mathematics")
        table.add_column(heading, justify="left" if left_side else "right", overflow="fold", no_wrap=not left_side)
    for option in advice.sharded:
        memory = option.memory
        cells = [
            option.title,
            _seconds(option.step_seconds),
            "" if option.serial_seconds is None else _seconds(option.serial_seconds),
            _seconds(option.coding_seconds),
            _seconds(option.exposed_seconds),
            number(option.speed_up),
            _bytes(option.sent_bytes),
            _bytes(option.leaving_bytes) if option.leaving_bytes else "",  # hosts are not known, or there is one
            _gib(memory.state),
            _gib(memory.gathered + memory.copies + memory.errors),
            _gib(memory.activations),
            _gib(memory.total) + ("" if option.fits is not False else ": does not fit"),
            "the same" if option.exact else "rounds: unknown here",
        ]
        table.add_row(*map(Text, cells), style="dim" if option.fits is False else "")
    console.print(table)


def _gib(nbytes: float) -> str:
    return f"{number(nbytes / 2**30)} GiB"


def show_verified(found: Verified, console: Console | None = None) -> None:
    """Print the short trainings of `--verify`: the loss at equal steps, and the time and bytes that a worker spent
    until then."""
    console = console or Console(width=None if sys.stdout.isatty() else _PIPED)
    console.print(
        Text(
            f"\nTrained on {found.workers} virtual workers in {found.spent_seconds:.0f} s; "
            f"{found.metric} at equal steps:"
        ),
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("strategy", found.metric, "interval", "at step", "virtual time", "sent", ""):
        table.add_column(heading, justify="left" if heading in ("strategy", "") else "right", overflow="fold")
    for one in found.trained:
        last = one.curve[-1] if one.curve else None
        table.add_row(
            *map(
                Text,
                [
                    one.strategy.replace("error_feedback", "ef"),
                    "" if one.loss is None else f"{one.loss:.4g}",
                    "" if one.low is None or one.high is None else f"{one.low:.4g}–{one.high:.4g}",
                    str(one.compared_step),
                    "" if last is None else _seconds(last.seconds),
                    "" if last is None else _bytes(last.sent_bytes),
                    one.error
                    or one.diverged
                    or ("" if one.strategy != found.baseline else "the baseline's mathematics"),
                ],
            )
        )
    console.print(table)
    for one in found.trained:
        if one.trained_as:
            console.print(Text(f"`{one.strategy}` was trained as `{one.trained_as}`, at its shares."), soft_wrap=True)
    for sentence in (*found.left_out, _length(found)):
        console.print(Text(sentence), soft_wrap=True)


def _length(found: Verified) -> str:
    """Return in words how long the trainings were, beside what was shown to predict."""
    if not found.least_steps:
        return (
            "No length was shown to predict how such a training ends, so the rounds share the time equally: do not "
            "read the order of neighbours."
        )
    if found.reached:
        return f"None was eliminated before step {found.least_steps}, the shortest length that was shown to predict."
    return (
        f"The time was over before step {found.least_steps}, the shortest length that was shown to predict: none was "
        "eliminated, and the order may change. Give --verify more time."
    )


def _cells(option: Option, base: Option) -> dict[str, str]:
    name = with_knobs(option.strategy).replace("error_feedback", "ef").replace(" / allreduce", "")
    return dict(
        zip(
            _COLUMNS,
            [
                "" if option.rank is None else str(option.rank),
                f"{name}, to compare" if option is base else name,
                _seconds(option.step_seconds),
                _seconds(option.computing_seconds),
                _seconds(option.coding_seconds),
                _seconds(option.exposed_seconds),
                _between(option.low_seconds, option.high_seconds),
                number(option.speed_up),
                _bytes(option.sent_bytes),
                _bytes(option.memory_bytes),
                "the same" if option.lossless else option.guarantee.partition(":")[0],
                loss_cell(option, base),
            ],
            strict=True,
        )
    )


def loss_cell(option: Option, base: Option) -> str:
    """Return the loss beside that of `bsp` with its interval: in percent, in multiples where it is twice as large.

    What rounds as the baseline does needs no measurement to be compared with it.
    """
    risk = option.risk
    if risk is None:
        return "" if option.lossless else "as the baseline" if option.guarantee == base.guarantee else "unknown here"
    if risk.high >= DIVERGED:
        return "diverges"
    if risk.loss_ratio >= 2:
        return f"{risk.loss_ratio:.1f} × [{risk.low:.1f}, {risk.high:.1f}]"
    middle, low, high = (100 * (ratio - 1) for ratio in (risk.loss_ratio, risk.low, risk.high))
    return f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]"


def _seconds(value: float) -> str:
    return with_unit(value, "seconds")


def _bytes(value: float) -> str:
    return with_unit(value, "bytes")


def _between(low: float, high: float) -> str:
    unit = unit_for([high], "seconds")
    return f"{unit.of(low)}–{unit.with_unit(high)}"


def _factors(text: str | None) -> tuple[float, ...]:
    from laconic.launch.request import read_slowness

    return tuple(read_slowness(text)) if text is not None else ()


def _verified(advice: Advice, subject: str, arguments: Sequence[str], network: str, budget: float) -> Verified:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verifying", total=1.0)

        def report_progress(share: float, what: str) -> None:
            bar.update(task, completed=share, description=what)

        return verify_advice(advice, subject, arguments, network, budget, report_progress)
