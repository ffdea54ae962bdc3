"""The table of federated rules: which runs it needs, in what order, and how its rows are read."""

from __future__ import annotations

import math
from functools import cache
from itertools import takewhile
from typing import Any

import pytest
from bench.clients.choosing import Run, Size, best_of, identity_of, needed, run_of
from bench.clients.methods import SEEDS, TUNING_SEED, tiers
from bench.clients.tables import first, interval, tables

from laconic.federated.strategy import FederatedStrategy

SIZE = Size(clients=20, silos=3, rounds=50, images=400)


def answered(run: Run, accuracy: float) -> dict[str, Any]:
    rounds = (run.rounds // 2, run.rounds)
    curve = [[n, accuracy * n / run.rounds, 3600.0 * n, 1_000_000 * n, 2_000_000 * n] for n in rounds]
    return {**vars(run), "accuracy": accuracy, "curve": curve}


@cache
def whole() -> list[dict[str, Any]]:
    """Return the rows of a whole table, in the order in which they are made: higher rates and knobs are better, and so
    is SCAFFOLD."""
    rows: list[dict[str, Any]] = []
    while runs := list(needed(SIZE, rows)):
        alike = takewhile(lambda run: (run.purpose, run.seed) == (runs[0].purpose, runs[0].seed), runs)
        for run in alike:
            better = 0.1 * (run.method == "scaffold") + 0.01 * run.seed * (run.purpose == "report")
            rows.append(answered(run, 0.4 + 0.1 * run.rate + 0.01 * (run.knob or 0.0) + better))
    return rows


def test_trials_are_short_and_on_a_seed_that_is_not_reported() -> None:
    runs = list(needed(SIZE, []))
    assert {(run.purpose, run.seed) for run in runs} == {("tuning", TUNING_SEED)} and TUNING_SEED not in SEEDS
    assert {run.rounds for run in runs} == {10, 30}  # a fifth; of three times as many where few take part


def test_the_two_best_rates_of_short_runs_meet_in_long_ones_and_these_decide() -> None:
    method = next(method for tier in tiers() for method in tier if method.name == "scaffold")
    accuracies = {0.003: 0.1, 0.01: 0.5, 0.03: 0.7, 0.1: 0.6, 0.3: 0.2}
    rows = [answered(run_of(method, SIZE, r, None, TUNING_SEED, "tuning"), a) for r, a in accuracies.items()]
    runs = [run for run in needed(SIZE, rows) if (run.method, run.population) == (method.name, method.population)]
    assert {(run.purpose, run.rate, run.rounds) for run in runs} == {("final", 0.03, 50), ("final", 0.1, 50)}
    finals = [answered(run, {0.03: 0.6, 0.1: 0.8}[run.rate]) for run in runs]
    assert best_of([*rows, finals[0]], method) == (0.03, None), "one final decides nothing"
    assert best_of([*rows, *finals], method) == (0.1, None)


def test_what_is_reported_has_the_best_rate_and_then_the_best_knob() -> None:
    reports = [row for row in whole() if row["purpose"] == "report"]
    assert {row["rate"] for row in reports} == {0.3}
    best = {method.name: max(method.knobs, default=None) for tier in tiers() for method in tier}
    assert all(row["knob"] == best[row["method"]] for row in reports)


def test_a_table_that_is_cut_short_is_whole_for_its_first_seeds() -> None:
    rows = whole()
    assert len({identity_of(row) for row in rows}) == len(rows)
    seeds = [row["seed"] for row in rows if row["purpose"] == "report"]
    assert seeds == sorted(seeds) and all(seeds.count(seed) == seeds.count(0) for seed in SEEDS)


def test_every_sentence_is_understood() -> None:
    for row in whole():
        assert FederatedStrategy.parse(row["sentence"]).rule.clients == max(1, round(row["share"] * row["clients"]))


def test_a_curve_reaches_a_target_at_its_first_point_above_it() -> None:
    curve = [[10, 0.2, 5.0, 1, 2], [20, 0.5, 6.0, 3, 4], [30, 0.4, 7.0, 5, 6]]
    assert first(curve, 0.4) == curve[1] and first(curve, 0.6) is None


def test_the_interval_is_that_of_students_t() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / math.sqrt(3)))
    assert interval([1.5]) == (1.5, math.inf)


def test_tables_show_differences_in_pairs_and_what_the_target_takes() -> None:
    text = "\n".join(tables(whole()))
    line = next(line for line in text.splitlines() if line.startswith("| `scaffold`"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "`scaffold`",
        "0.3",
        "",
        "54.0 (53.0, 54.0, 55.0)",
        "**+10.0 ± 0.0**",
        "50",
        "50",
        "50",
        "100",
        "50",
        "100",
    ]
    assert text.count("minus without") == 1
    assert "at the edge of those tried: `fedavg`, " in text and "by short runs alone" not in text
    unfinished = [row for row in whole() if (row["method"], row["purpose"]) != ("fedavg", "final")]
    assert "The rate was chosen by short runs alone: `fedavg`." in "\n".join(tables(unfinished))


def test_reports_at_a_rate_that_another_has_replaced_are_not_shown() -> None:
    rows = [row for row in whole() if row["rate"] != 0.3 or row["method"] != "scaffold"]
    best = max(row["rate"] for row in rows if row["method"] == "scaffold")
    reports = [row for row in whole() if (row["method"], row["purpose"], row["rate"]) == ("scaffold", "report", 0.3)]
    trials = [row for row in rows if row["purpose"] == "tuning" or row["method"] != "scaffold"]
    assert best < 0.3 and reports and "`scaffold`" not in "\n".join(tables([*trials, *reports]))
