"""`laconic bounds`: the table, its JSON, what it leaves out and what it prefers."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from laconic import registry
from laconic.cli.app import app
from laconic.errors import LaconicError
from laconic.theory.question import ask
from laconic.theory.survey import Row, survey

EVERYTHING = ("--mu", "0.1", "--distance", "3", "--gradient-bound", "2")


def answer(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bounds", *arguments], env=os.environ | {"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def asked(*arguments: str) -> dict[str, Any]:
    return json.loads(answer(*arguments, "--json"))  # type: ignore[no-any-return]


def rows(**changes: Any) -> dict[tuple[str, str], Row]:
    given = {"workers": 8, "iterations": 10**6, "epsilon": 0.01, "smoothness": 1.0, "sigma": 1.0, "gap": 1.0} | changes
    return {(row.technique, row.method): row for row in survey(ask(**given))}


def test_every_result_has_a_row_and_every_row_is_registered() -> None:
    reported = {row["technique"] for row in asked(*EVERYTHING)["rows"]}
    known = {entry.name for entry in registry.entries("theory") if entry.module.startswith("laconic.theory")}
    assert reported == known - {
        "asynchrony_momentum",
        "alistarh_topk_theory",
        "c2c_ratio",
        "llm_data_parallel_cost",
        "uniform_benchmark",
    }  # no rates


def test_what_is_not_given_leaves_out_what_needs_it() -> None:
    text = answer()
    assert "left out  theory_stich_2019: it needs mu" in text
    assert "Theory prefers cooperative_sgd_bound" in text and "constants that the papers leave open" in text
    full = answer(*EVERYTHING)
    assert "left out" not in full
    assert "Theory prefers theory_spiridonoff_2021" in full and "~8 for 100,000 steps" in full
    assert "accelerated minibatch SGD has the smallest bound" in full


def test_rounds_follow_the_tables_orders() -> None:
    found = rows(mu=0.1, distance=3.0, gradient_bound=2.0)
    rounds = {technique: row.rounds for (technique, method), row in found.items() if method != "CR-PSGD-Catalyst"}
    assert rounds["theory_stich_2019"] == 2829  # sqrt(8 · 10^6), rounded up
    assert rounds["theory_haddadpour_2019"] == 200
    assert rounds["theory_yu_2019"] == 150_425  # ceil((8 · 10^6)^(3/4))
    assert rounds["theory_spiridonoff_2021"] == 8
    assert rounds["theory_yu_jin_2019"] == 14
    assert rounds["cooperative_sgd_bound"] == 22_628
    for row in found.values():
        assert row.rounds is not None and row.period == pytest.approx(10**6 / row.rounds)


def test_bytes_and_seconds_appear_with_what_they_are_made_of() -> None:
    bare = rows()[("cooperative_sgd_bound", "cooperative SGD")]
    assert bare.bytes is None and bare.seconds is None
    given = rows(model_bytes="1MB", step_seconds="10ms", round_seconds="1s", speeds="1,1,1,1,1,1,1,0.5")
    local = given[("cooperative_sgd_bound", "cooperative SGD")]
    assert local.rounds is not None
    assert local.bytes == pytest.approx(local.rounds * 2 * 7 / 8 * 1e6)
    assert local.seconds == pytest.approx(10**6 * 0.02 + local.rounds)
    late = given[("theory_mishchenko_2022", "… rate by delay")]
    assert late.bytes == 10**6 * 1e6
    assert late.seconds == pytest.approx(8 * 10**6 / (7 / 1.01 + 1 / 1.02))


def test_theory_prefers_not_to_wait_for_a_straggler_when_communication_is_cheap() -> None:
    cheap = ("--workers", "4", "--speeds", "1,1,1,0.2", "--step-seconds", "50ms", "--round-seconds")
    quick, dear = (asked(*cheap, seconds)["preference"] for seconds in ("1ms", "10s"))
    assert "nobody waits for the slowest (gradients per second ×4)" in quick
    assert "Theory prefers cooperative_sgd_bound" in dear
    hint = asked("--workers", "4", "--speeds", "1,1,1,0.2")["preference"]
    assert "take 4 times the gradients per second; give --step-seconds" in hint


def test_delays_left_out_are_those_of_busy_workers() -> None:
    question = ask(workers=4, iterations=10, epsilon=0.1, smoothness=1, sigma=1, speeds="1,1,1,0.2")
    assert (question.tau_avg, question.tau_max) == (3, pytest.approx(15))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"speeds": "1,2"}, "names 2 workers and --workers 8"),
        ({"speeds": "1,1,1,1,1,1,1,0"}, "--speeds 0.0 makes no sense"),
        ({"speeds": "1,1,1,1,1,1,1,fast"}, '"fast" in --speeds is no number'),
        ({"tau_avg": 9.0, "tau_max": 3.0}, "--tau-avg 9 must lie between 0 and --tau-max 3"),
        ({"workers": 0}, "workers=0 makes no sense"),
        ({"mu": 3.0}, "cannot exceed the smoothness"),
        ({"model_bytes": "big"}, '"big" in --model-bytes is no number'),
    ],
)
def test_senseless_questions_are_refused_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LaconicError, match=sentence):
        rows(**changes)


def test_a_problem_that_would_take_for_ever_is_left_out() -> None:
    text = answer("--mu", "1e-9")
    assert "theory_yu_jin_2019: it sums" in text and "give a larger --mu" in text


@pytest.mark.parametrize(
    "given",
    [
        *(("--sigma", "-1"), ("--sigma", "nan"), ("--gap", "-1"), ("--distance", "inf"), ("--gradient-bound", "-1")),
        *(("--smoothness", "1e308"), ("--mu", "1e-300"), ("--epsilon", "1e-300"), ("--tau-max", "inf")),
        *(("--model-bytes", "-5"), ("--step-seconds", "-1ms"), ("--speeds", ",".join(["-1"] * 8))),
        *(("--workers", "0"), ("--workers", "10000000"), ("--iterations", f"{10**400}")),
    ],
    ids=lambda given: " ".join(given)[:30],
)
def test_numbers_that_no_problem_has_are_refused(given: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["bounds", *given])
    assert isinstance(result.exception, LaconicError)
    assert "give" in str(result.exception) or "write" in str(result.exception)
