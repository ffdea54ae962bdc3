"""The cells of the frontier's tables, which the terminal and the page show alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from laconic.experiments.statistics import Spread
from laconic.frontier.map import Offer
from laconic.frontier.tables import Line, Table
from laconic.planner.runs import MOST_PASSES
from laconic.report.page.units import MISSING, number, times, with_unit

LINE_COLUMNS = ("method", "rate", "seeds", "loss", "gap %", "[95 %]", "tokens", "[95 %]", "bytes / DDP16", "metrics")
OFFER_COLUMNS = ("method", "step", "sent", "tokens", "speed-up", "[95 %]", "pays", "loss by")


def about(table: Table) -> str:
    """Return a table's title with its model, its steps and what it cost."""
    minutes = sum(run.seconds / run.packed for run in table.runs) / 60
    steps = max(run.full_steps for run in table.runs)
    devices = ", ".join(sorted({run.device for run in table.runs if run.device})) or "an unnamed device"
    return (
        f"{table.title}: {table.parameters / 1e6:.3g} M parameters, {table.workers} workers, {table.optimizer}, "
        f"{steps:,} steps, {table.samples_per_parameter:.2g} samples a parameter; {len(table.runs)} runs, "
        f"{minutes:.0f} min of {devices}"
    )


def line_cells(table: Table, line: Line) -> list[str]:
    """Return the cells of a method in the order of `LINE_COLUMNS`."""
    gap, tokens = line.gap, line.tokens
    metrics = ", ".join(f"{name} {spread(found, 1)}" for name, found in line.metrics.items())
    return [
        table.name(line.method),
        f"{line.tuned.lr:g}",
        str(len(line.seeds)),
        f"{line.loss:.4f}" if math.isfinite(line.loss) else "diverged",
        MISSING if gap is None else f"{100 * gap.middle:+.2f}",
        MISSING if gap is None or math.isnan(gap.low) else f"{100 * gap.low:+.2f} to {100 * gap.high:+.2f}",
        MISSING if tokens is None else f"{'' if line.tokens_measured else '~'}{tokens.middle:.3f}",
        MISSING if tokens is None or math.isnan(tokens.low) else f"{tokens.low:.3f} to {tokens.high:.3f}",
        MISSING if line.bytes_over_ddp is None else number(line.bytes_over_ddp),
        metrics,
    ]


def offer_cells(offer: Offer) -> list[str]:
    """Return the cells of a method at a place, in the order of `OFFER_COLUMNS`."""
    gain = offer.speed_up
    return [
        offer.name,
        f"{with_unit(offer.step.seconds, 'seconds')}{'' if offer.step.priced else ' ~'}",
        with_unit(offer.step.sent_bytes, "bytes"),
        f"{'' if offer.reaches else '~'}{offer.tokens.middle:.3f}",
        times(gain.middle),
        MISSING if math.isnan(gain.low) else f"{number(gain.low)} to {number(gain.high)}",
        "yes" if offer.pays else "" if offer.reaches else "too far",
        offer.basis,
    ]


def warnings(table: Table) -> Iterator[str]:
    """Yield what speaks against trusting a table's lines."""
    for line in table.lines:
        for warning in line.tuned.warnings:
            yield f"{table.name(line.method)}: {warning}"
    yield from table.left_out
    yield from _repeated(table)
    yield from _above_noise(table)


def _repeated(table: Table) -> Iterator[str]:
    """Yield the seeds whose runs passed over their text more often than they should; images have many epochs."""
    if table.kind != "transformer":
        return
    most: dict[int, float] = {}
    for run in table.runs:
        most[run.seed] = max(most.get(run.seed, 0.0), run.epochs or 0.0)
    for seed, epochs in sorted(most.items()):
        if epochs > MOST_PASSES:
            passed = f"seed {seed}: runs passed {epochs:.2g} times over their text"
            yield f"{passed}, where more than {MOST_PASSES} is too many"


def _above_noise(table: Table) -> Iterator[str]:
    """Yield the baselines whose batch was above the noise scale of their gradients in reported runs."""
    for line in table.lines:
        reported = [run for run in line.tuned.reported if run.noise_scale is not None]
        for batch in sorted({run.samples_per_step for run in reported}):
            scale = median(run.noise_scale or 0.0 for run in reported if run.samples_per_step == batch)
            if batch > scale:
                yield (
                    f"{table.name(line.method)}: its batch of {batch:,} is above the noise scale of its gradients, "
                    f"{scale:,.0f}: part of the batch is wasted, which flatters methods that exchange less"
                )


def spread(found: Spread, unit: float, digits: int = 4) -> str:
    """Return a number with its interval in brackets."""
    middle = f"{found.middle / unit:.{digits}g}"
    return (
        middle if math.isnan(found.low) else f"{middle} [{found.low / unit:.{digits}g}–{found.high / unit:.{digits}g}]"
    )
