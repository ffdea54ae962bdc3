"""The tables of `laconic ablate`: what each part of a strategy contributes to loss, bytes and time."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from laconic.experiments.ablation import Variant
from laconic.experiments.compare import Comparison
from laconic.experiments.measure import Line
from laconic.files import write_text
from laconic.report.table import aligned, csv_headings, csv_quantity, made_how, never_logged, ratio, value
from laconic.strategy import Strategy

WHOLE = "the whole"


def listed(whole: Strategy, variants: Sequence[Variant]) -> str:
    """Return the rows that an ablation would have, as text, without running them."""
    rows = [[WHOLE, str(whole)], *([v.change, str(v.strategy or f"– {v.refusal}")] for v in variants)]
    width = max(len(change) for change, _ in rows)
    return "".join(f"{change.ljust(width)}  {text}\n" for change, text in rows)


def write(comparison: Comparison, variants: Sequence[Variant], metric: str) -> str:
    """Write `ablation.txt` and `ablation.csv` to the comparison's folder, and return the text."""
    changes = [WHOLE, *(variant.change for variant in variants if variant.strategy is not None)]
    rows = list(zip(changes, comparison.lines, strict=True))
    text = _as_text(comparison, rows, variants, metric)
    write_text(comparison.folder / "ablation.txt", text)
    write_text(comparison.folder / "ablation.csv", _as_csv(rows, metric))
    return text


def _as_text(comparison: Comparison, rows: Sequence[tuple[str, Line]], variants: Sequence[Variant], metric: str) -> str:
    several = rows[0][1].runs > 1
    headings = [f"{metric} ×", "sent ×", "step ×", f"final {metric}", "MB/step", "ms/step"]
    cells = [
        [
            change,
            ratio(line.final.get(metric), several),
            ratio(line.sent_bytes),
            ratio(line.step_seconds, several),
            value(line.final.get(metric), 1.0),
            value(line.sent_bytes, 1e6),
            value(line.step_seconds, 1e-3),
        ]
        for change, line in rows
    ]
    refused = [f"cannot stand {v.change}: {v.refusal}" for v in variants if v.strategy is None]
    failed = [f"FAILED  {change}: {line.error}" for change, line in rows if line.error is not None]
    notes = [
        f"×: over the whole, {rows[0][1].name}" + ("; 95 % bootstrap intervals, paired by seed." if several else "."),
        "A part with a loss × above 1 lowers the loss; one with a sent × above 1 saves bytes, with a step × time.",
        *never_logged(metric, comparison.lines, "--metric"),
    ]
    if comparison.regime is None and rows[0][1].step_seconds is not None:
        notes.append("step: what the network takes; encoding costs nothing there. `--engine real` measures it.")
    table = aligned(["part", *headings], cells)
    return "\n".join([*made_how(comparison), "", *table, "", *failed, *refused, *notes]) + "\n"


def _as_csv(rows: Sequence[tuple[str, Line]], metric: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f"final_{metric}", "sent_bytes_per_step", "step_seconds"]
    writer.writerow(["part", "strategy", *csv_headings(names), "error"])
    for change, line in rows:
        quantities = (line.final.get(metric), line.sent_bytes, line.step_seconds)
        numbers = [number for quantity in quantities for number in csv_quantity(quantity)]
        writer.writerow([change, line.name, *numbers, line.error or ""])
    return out.getvalue()
