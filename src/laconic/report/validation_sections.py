"""The sections of `laconic validate` other than published step times: tables, summary lines and plain values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from laconic.planner.validation.claims import BASES
from laconic.planner.validation.errors import Errors
from laconic.planner.validation.nccl import SystemErrors
from laconic.planner.validation.pollux import SHARES, STATED, ModelErrors
from laconic.planner.validation.runs import RunErrors

_MISSING = "–"


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """Return a table whose first `left` columns are aligned to the left and the others, numbers, to the right."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for k, heading in enumerate(headings):
        made.add_column(heading, justify="left" if k < left else "right")
    for row in rows:
        made.add_row(*row)
    return made


def basis_lines(section: str) -> list[str]:
    """Return lines that say what was fitted, what was not, and which accuracy other tools claim for themselves."""
    basis = BASES[section]
    return [
        f"fitted: {basis.fitted}. Not fitted: {basis.not_fitted}.",
        "what other tools claim for themselves (other machines, other questions):",
        *(f"  {claim.tool}: {claim.says} ({claim.where})" for claim in basis.others),
    ]


def basis_values(section: str) -> dict[str, Any]:
    """Return what a section's figures rest on, as plain values."""
    return asdict(BASES[section])


# ------------------------------------------------------------------------------------------------ NCCL


def nccl_table(found: Sequence[SystemErrors]) -> Group:
    """Return the errors of predicted collectives where sizes or GPU counts are left out of the fit."""
    sizes = [
        [s.system, *map(_mean, (s.one_size, s.one_size_plain, s.every_second, s.every_second_plain, s.largest_size))]
        for s in found
    ]
    counts = [[s.system, _mean(s.count), s.count_from, _mean(s.count_alone), _mean(s.beyond)] for s in found]
    return Group(
        table(
            "mean error of a collective's time, % (largest): sizes left out",
            ("system", "one size", "(plain)", "every second", "(plain)", "the largest"),
            sizes,
        ),
        table(
            "the same: GPU counts left out",
            ("system", "4 GPUs", "from", "by its own table alone", "8 GPUs from fewer"),
            counts,
        ),
    )


def nccl_lines(found: Sequence[SystemErrors]) -> list[str]:
    """Return the errors over all systems as lines of text."""
    sizes = _pooled([s.one_size for s in found])
    counts = _pooled([s.count for s in found])
    ratios = ", ".join(f"{s.system} {s.ratio:.2f}" for s in found)
    return [
        f"sizes left out: mean {_percent(sizes.mean)}, largest {_percent(sizes.largest)}, {sizes.cells} cells; over "
        f"straight lines between logarithms (plain), the worse of both ways: {ratios}",
        f"4 GPUs left out: mean {_percent(counts.mean)}, largest {_percent(counts.largest)}, {counts.cells} cells",
    ]


def nccl_values(found: Sequence[SystemErrors]) -> list[dict[str, Any]]:
    """Return the errors of each system as plain values."""
    return [{**asdict(s), "ratio_to_plain": s.ratio} for s in found]


# ------------------------------------------------------------------------------------------------ Pollux


def pollux_table(found: Sequence[ModelErrors]) -> Group:
    """Return the errors of predicted steps to a target where each batch size in turn is left out of the fit."""
    others = [share for share in SHARES if share != STATED]
    stated = [
        [
            m.model,
            f"{'≥' if m.rises else '≤'} {m.stated.value:.4g}",
            _percent(m.stated.median_error()),
            f"{m.stated.in_tolerances():.2f}",
            _percent(m.stated.mean_error()),
            _percent(m.stated.largest_error()),
            str(len(m.stated.cells)),
        ]
        for m in found
    ]
    rest = [
        [
            m.model,
            *(_percent(m.stated.median_error(by)) for by in ("noise", "own_noise", "known")),
            *(f"{_percent(m.targets[s].median_error())} ({m.targets[s].in_tolerances():.2f})" for s in others),
        ]
        for m in found
    ]
    return Group(
        table(
            "steps to a target, each batch size left out in turn: error",
            ("model", f"target ({_share(STATED)})", "median", "of tolerance", "mean", "largest", "batches"),
            stated,
        ),
        table(
            "medians of other ways, and of other targets (of tolerance)",
            ("model", "from noise", "own noise", "known progress", *map(_share, others)),
            rest,
        ),
    )


def pollux_lines(found: Sequence[ModelErrors]) -> list[str]:
    """Return the definition of the target and the errors over all models as lines of text."""
    passed = {share: sum(m.targets[share].in_tolerances() <= 1 for m in found) for share in SHARES}
    cells = [cell for m in found for cell in m.stated.cells]
    errors = [cell.error("law") for cell in cells]
    return [
        f"target: {_share(STATED)} of the way from the first evaluation to the best that every batch size reaches; "
        "tolerance: the larger of 10 % and one evaluation",
        f"mean {_percent(statistics.fmean(errors))}, largest {_percent(max(errors))}, {len(cells)} cells",
        "models whose median is within tolerance: "
        + ", ".join(f"{passed[share]} of {len(found)} at {_share(share)}" for share in SHARES),
        "from noise: progress and noise of the neighbouring batch sizes; own noise: noise columns of the run left out; "
        "known progress: its progress column and the neighbours' noise, so the noise model alone and no prediction",
    ]


def pollux_values(found: Sequence[ModelErrors]) -> list[dict[str, Any]]:
    """Return the errors of each model and target as plain values."""
    return [
        {
            "model": m.model,
            "better": "higher" if m.rises else "lower",
            "targets": [
                {
                    "share": t.share,
                    "stated": t.share == STATED,
                    "value": t.value,
                    "within_tolerance": t.in_tolerances() <= 1,
                    **{f"median_error_{by}": t.median_error(by) for by in ("law", "noise", "own_noise", "known")},
                    "mean_error": t.mean_error(),
                    "largest_error": t.largest_error(),
                    "cells": [asdict(cell) for cell in t.cells],
                }
                for t in m.targets.values()
            ],
        }
        for m in found
    ]


# ------------------------------------------------------------------------------------------------ real runs


def runs_table(found: RunErrors) -> Table:
    """Return predicted and measured step times of real runs."""
    rows = [
        [
            run.model,
            run.network,
            run.strategy,
            str(run.workers),
            f"{run.r:.2f}",
            f"{1e3 * run.predicted_seconds:.1f} [{1e3 * run.low_seconds:.1f}–{1e3 * run.high_seconds:.1f}]",
            f"{1e3 * run.measured_seconds:.1f}",
            f"{100 * run.error:+.1f} %",
        ]
        for run in found.runs
    ]
    headings = ("model", "network", "strategy", "workers", "r", "predicted ms [range]", "measured ms", "error")
    return table("step times of real runs", headings, rows, left=3)


def runs_lines(found: RunErrors) -> list[str]:
    """Return the errors over all real runs as a line of text."""
    errors = found.errors
    return [
        f"mean {_percent(errors.mean)}, median {_percent(errors.median)}, largest {_percent(errors.largest)}, "
        f"{errors.cells} cells; {100 * found.share_inside:.0f} % of predictions inside the measured spread"
    ]


def runs_values(found: RunErrors) -> dict[str, Any]:
    """Return predicted and measured step times of real runs as plain values."""
    runs = [{**asdict(run), "error": run.error, "inside": run.inside} for run in found.runs]
    return {**asdict(found.errors), "share_inside": found.share_inside, "runs": runs}


# ------------------------------------------------------------------------------------------------


def _mean(errors: Errors | None) -> str:
    return _MISSING if errors is None else f"{100 * errors.mean:.1f} ({100 * errors.largest:.0f})"


def _pooled(parts: Sequence[Errors | None]) -> Errors:
    found = [part for part in parts if part is not None]
    cells = sum(part.cells for part in found)
    mean = sum(part.mean * part.cells for part in found) / cells if cells else 0.0
    return Errors(mean, mean, max((part.largest for part in found), default=0.0), cells)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"
