"""The table of `laconic compare`, as text and as CSV; lines above the text say how it was made and in which regime."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from laconic.experiments.compare import Comparison
from laconic.experiments.measure import Line, Quantity
from laconic.experiments.statistics import Spread
from laconic.files import write_text
from laconic.launch.failure_report import shown

_MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column: its heading, and the function that gives a row's cell."""

    heading: str
    cell: Callable[[Line], str]


def write(comparison: Comparison) -> str:
    """Write `table.txt` and `table.csv` to the comparison's folder, and return the text."""
    text = as_text(comparison)
    write_text(comparison.folder / "table.txt", text)
    write_text(comparison.folder / "table.csv", as_csv(comparison.lines))
    return text


def as_text(comparison: Comparison) -> str:
    """Return the page as text: how it was made, the regime, the table, failures, and how to read it."""
    columns = _columns(comparison)
    cells = [[column.cell(line) for column in columns] for line in comparison.lines]
    table = aligned([column.heading for column in columns], cells)
    failures = [f"FAILED  {line.name}: {line.error}" for line in comparison.lines if line.error is not None]
    parts = [*made_how(comparison), "", *table, *([""] if failures else []), *failures, "", *_legend(comparison)]
    return "\n".join(parts) + "\n"


def as_csv(lines: Sequence[Line]) -> str:
    """Return every number in SI units, with its spread, its ratio to the baseline and the ratio's spread."""
    rows = records(lines)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each line as a flat dict of its numbers; what could not be measured is None."""
    metrics = list(dict.fromkeys(name for line in lines for name in line.final))
    names = [*(_UNITS.get(name, name) for name in _NUMBERS), *(f"final_{metric}" for metric in metrics)]
    found = []
    for line in lines:
        quantities = [*(getattr(line, name) for name in _NUMBERS), *(line.final.get(metric) for metric in metrics)]
        numbers = [part for quantity in quantities for part in csv_quantity(quantity)]
        found.append(
            {
                "strategy": line.name,
                **dict(zip(csv_headings(names), numbers, strict=True)),
                "runs": line.runs,
                "runs_at_target": line.reached,
                "timed_blocks": line.blocks,
                "bytes_by": line.counter,
                "error": line.error,
            }
        )
    return found


# ------------------------------------------------------------------------------------------------ text


def made_how(comparison: Comparison) -> list[str]:
    """Return lines that say how the comparison was made, where it ran, and its regime r, the exposed communication of
    the baseline divided by its computation."""
    settings = comparison.settings
    flag = " (--quick)" if settings.quick else ""
    if settings.tuning is None:
        made = f"NOT MADE BY THE PROTOCOL{flag}: {'; '.join(comparison.departures)}."
    else:
        own = settings.tuning
        made = (
            f"Made by the protocol: tuned on seeds {_listed(own.choosing_seeds)}, reported on seeds "
            f"{_listed(own.reporting_seeds)}, paired; ratios with 95 % bootstrap intervals."
        )
        if comparison.departures:
            made += f" DEPARTS FROM IT: {'; '.join(comparison.departures)}."
    baseline = comparison.lines[0]
    return [
        made,
        f"{' '.join(settings.command)}: {settings.workers} workers, {_where(comparison)}.",
        f"Regime: r = exposed communication / computation of the baseline = {_regime(comparison)}. "
        f"Baseline: {baseline.name}{'' if baseline.error is None else ', WHICH FAILED: there are no ratios'}.",
    ]


def _regime(comparison: Comparison) -> str:
    baseline, r = comparison.lines[0], comparison.regime
    if r is not None:
        return f"{r:.2f}"
    timed = baseline.error is None and baseline.exposed_seconds is not None
    return f"{_MISSING} ({'computing takes no time' if timed else 'it was not timed'})"


def _where(comparison: Comparison) -> str:
    settings = comparison.settings
    if settings.engine == "virtual":
        return f"virtual, over {settings.network or '1Gbit'}"
    if settings.net is not None:
        return f"real processes on the shaped network {settings.net}"
    if settings.rate is not None:
        delay = f" and {settings.delay} one way" if settings.delay else ""
        return f"real processes, links of {settings.rate}{delay}"
    return "real processes on the loopback"


def _columns(comparison: Comparison) -> list[Column]:
    columns = [
        Column("strategy", lambda line: line.name),
        Column("ms/step [spread]", lambda line: _with_spread(line.step_seconds, 1e-3)),
        Column("× [spread]", lambda line: ratio(line.step_seconds, spread=True)),
        Column("computing", lambda line: _spread(line.computing_seconds, 1e-3)),
        Column("exposed ms", lambda line: value(line.exposed_seconds, 1e-3)),
        Column("×", lambda line: ratio(line.exposed_seconds)),
        Column("sent MB/step", lambda line: value(line.sent_bytes, 1e6)),
        Column("received", lambda line: value(line.received_bytes, 1e6)),
        Column("×", lambda line: ratio(line.sent_bytes)),
    ]
    metrics = [comparison.target[0]] if comparison.target else list(comparison.lines[0].final)[:2]
    several = comparison.lines[0].runs > 1
    for metric in metrics:
        columns += [
            Column(f"final {metric}", lambda line, metric=metric: value(line.final.get(metric), 1.0)),  # type: ignore[misc]
            Column("×", lambda line, metric=metric: ratio(line.final.get(metric), several)),  # type: ignore[misc]
        ]
    if comparison.target is not None:
        columns += [
            Column("s to target", lambda line: _to_target(line, metrics[0], line.seconds_to_target, 1.0)),
            Column("×", lambda line: ratio(line.seconds_to_target, several)),
            Column("MB to target", lambda line: _to_target(line, metrics[0], line.bytes_to_target, 1e6)),
            Column("×", lambda line: ratio(line.bytes_to_target, several)),
        ]
    return columns


def _legend(comparison: Comparison) -> list[str]:
    several = comparison.lines[0].runs > 1
    virtual = comparison.settings.engine == "virtual"
    spread = (
        "mean over seeds [least–largest]; ratio of the means [95 % bootstrap interval], paired by seed"
        if several
        else "median over blocks [quartiles]; ratio by round, median [quartiles]; the first block is warm-up"
    )
    alone = (
        "over a network on which messages take no time"
        if virtual
        else "in workers that do not communicate, in the same rounds"
    )
    counters = {line.counter for line in comparison.lines if line.counter is not None}
    counted = {
        "interface": "the interfaces' counters (headers and heartbeats included)",
        "ledger": "the ledger (handed to the transport; other libraries' bytes are not seen)",
    }
    notes = [
        f"time: {spread}. It includes what the script does between steps.",
        f"computing: a step {alone}; exposed: a step less that, for every row alike.",
        f"bytes: of one worker, mean over all, by {' and '.join(counted[c] for c in sorted(counters))}."
        if counters
        else "bytes: they were not counted.",
    ]
    if comparison.target is not None:
        name, value = comparison.target
        reference = f"the {name} at the tuned reference's end, by seed"
        at = reference if value is None else f"{name}={value:g}"
        notes.append(
            f"target: {at}; time from distribute() on, without pauses; bytes of one worker in both directions."
        )
        notes += never_logged(name, comparison.lines, "--target")
    if comparison.settings.rows_at_once is not None:
        notes.append("rows ran in groups: each ratio is to the baseline that ran beside it.")
    return [*notes, f"folder: {shown(comparison.folder)}"]


def never_logged(metric: str, lines: Sequence[Line], option: str) -> list[str]:
    """Return a sentence if no row that ended well logged a metric, which names those that were logged; else nothing."""
    ended = [line for line in lines if line.error is None]
    if not ended or any(metric in line.logged for line in ended):
        return []
    logged = list(dict.fromkeys(name for line in ended for name in line.logged))
    instead = f"it logs {', '.join(logged)}: name one of these with {option}" if logged else "it logs nothing"
    return [f"{metric} was NEVER LOGGED by the script; {instead}, or report it with laconic.log({metric}=…)."]


def aligned(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column aligned to the left, all others to the right."""
    widths = [max(len(row[k]) for row in (headings, *cells)) for k in range(len(headings))]

    def laid(row: Sequence[str]) -> str:
        return "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])

    return [laid(headings), "  ".join("-" * width for width in widths), *(laid(row) for row in cells)]


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def value(quantity: Quantity | None, unit: float) -> str:
    """Return the middle of a quantity in this unit, or a dash if there is none."""
    return _MISSING if quantity is None else _number(quantity.value.middle / unit)


def _spread(spread: Spread | None, unit: float) -> str:
    return _MISSING if spread is None else _number(spread.middle / unit)


def _with_spread(quantity: Quantity | None, unit: float) -> str:
    if quantity is None:
        return _MISSING
    v = quantity.value / unit
    return f"{_number(v.middle)} [{_number(v.low)}–{_number(v.high)}]"


def ratio(quantity: Quantity | None, spread: bool = False) -> str:
    """Return a quantity's ratio to the baseline's, with its interval if asked for, or a dash if there is none."""
    if quantity is None or quantity.ratio is None:
        return _MISSING
    r = quantity.ratio
    return f"{r.middle:.3f} [{r.low:.3f}–{r.high:.3f}]" if spread and not math.isnan(r.low) else f"{r.middle:.3f}"


def _to_target(line: Line, metric: str, quantity: Quantity | None, unit: float) -> str:
    if quantity is not None:
        return value(quantity, unit)
    if line.reached == line.runs:  # reached, but this quantity was not counted
        return _MISSING
    if metric not in line.logged:
        return "never logged" if line.error is None else _MISSING
    return "not reached" if line.runs == 1 else f"{line.reached} of {line.runs} reach it"


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


# ------------------------------------------------------------------------------------------------ CSV

_NUMBERS = (
    "step_seconds",
    "computing_seconds",
    "exposed_seconds",
    "sent_bytes",
    "received_bytes",
    "waited_seconds",
    "seconds_to_target",
    "bytes_to_target",
)
_UNITS = {"sent_bytes": "sent_bytes_per_step", "received_bytes": "received_bytes_per_step"}


def csv_headings(names: Sequence[str]) -> list[str]:
    """Return six headings a name: the number, its spread, its ratio to the baseline's, and the ratio's spread."""
    return [f"{name}{part}" for name in names for part in ("", "_low", "_high", "_ratio", "_ratio_low", "_ratio_high")]


def csv_quantity(value: Quantity | Spread | None) -> list[float | None]:
    """Return the six cells of a quantity, in the order of `csv_headings`; cells that do not exist are None."""
    spread = value.value if isinstance(value, Quantity) else value
    ratio = value.ratio if isinstance(value, Quantity) else None
    numbers = [n for s in (spread, ratio) for n in ((math.nan,) * 3 if s is None else (s.middle, s.low, s.high))]
    return [None if math.isnan(number) else number for number in numbers]
