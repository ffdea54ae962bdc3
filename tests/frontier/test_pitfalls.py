"""What rows say of themselves that speaks against their table: texts seen too often, baselines above their batch."""

from __future__ import annotations

from dataclasses import replace

from laconic.frontier.tables import tables
from laconic.planner.runs import Run
from laconic.report.page.frontier_cells import warnings
from tests.frontier.rows import ladder


def said(runs: tuple[Run, ...]) -> list[str]:
    (table,) = tables(runs)
    return list(warnings(table))


def test_seeds_that_passed_too_often_over_their_text_are_named() -> None:
    rows = ladder({"diloco(30)": 0.01})
    seen = tuple(replace(run, epochs=3.38 * run.share if run.seed == 2 else 2 * run.share) for run in rows)
    assert said(seen) == [*said(rows), "seed 2: runs passed 3.4 times over their text, where more than 2 is too many"]
    assert said(tuple(replace(run, kind="convolutional") for run in seen)) == said(rows)


def test_a_baseline_whose_batch_is_above_its_noise_scale_is_named() -> None:
    rows = ladder({"diloco(30)": 0.01})

    def of_scale(*scales: float | None) -> list[str]:
        return said(
            tuple(
                replace(run, noise_scale=scales[run.seed - 1]) if run.is_plain and run.purpose == "report" else run
                for run in rows
            )
        )

    (found,) = set(of_scale(9000.0, 12000.0, 90000.0)) - set(said(rows))
    assert found.startswith("bsp: its batch of 16,384 is above the noise scale of its gradients, 12,000: ")
    assert of_scale(9000.0, 17000.0, 90000.0) == of_scale(None, None, None) == said(rows)
