"""The seven orderings, on made-up trainings where they hold, where they are refuted, and where neither is certain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.frontier.orderings import ORDERINGS, Judged, judge
from laconic.frontier.pairs import Pair
from laconic.frontier.tables import tables
from laconic.planner.runs import Run
from tests.frontier.rows import ladder

SPARSE = "diloco(30, lr=1.0, momentum=0.0) / chunk_topk(k={})+two_bit+error_feedback(decay=0.95)"
TWO_BITS, WITH_MEMORY = "bsp / two_bit", "bsp / two_bit+ef"
FEW = {"diloco(30)": 0.47 / 2, SPARSE.format(32): 0.003, SPARSE.format(64): 0.004}
NAMES = [ordering.name for ordering in ORDERINGS]
PERIOD, NESTEROV, ALONE, MEMORY, SPARSELOCO, RANK, SIZE = range(7)

CASES = {
    PERIOD: ({"diloco(10)": 0.002, "diloco(30)": 0.01, "diloco(100)": 0.03}, {"diloco(10)": 0.02, "diloco(30)": 0.01}),
    NESTEROV: ({"diloco(30)": 0.01, "local(30)": 0.03}, {"diloco(30)": 0.03, "local(30)": 0.01}),
    MEMORY: ({TWO_BITS: 0.2, WITH_MEMORY: 0.05}, {TWO_BITS: 0.05, WITH_MEMORY: 0.2}),
    SPARSELOCO: (
        {"diloco(30)": 0.01, SPARSE.format(32): 0.012},
        {"diloco(30)": 0.01, SPARSE.format(32): 0.03},
    ),
    RANK: (
        {"bsp / power_sgd(4)+ef": 0.03, "bsp / power_sgd(16)+ef": 0.02, "bsp / power_sgd(32)+ef": 0.01},
        {"bsp / power_sgd(4)+ef": 0.01, "bsp / power_sgd(16)+ef": 0.02},
    ),
}


def judged(place: int, runs: tuple[Run, ...] | list[Run]) -> Judged:
    (found,) = [one for one in judge(tables(runs)) if one.name == NAMES[place]]
    return found


def made(gaps: Mapping[str, float], **kind: object) -> tuple[Run, ...]:
    return ladder(gaps, noise=0.0005, bytes_per_parameter=FEW, **kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [0, 1])
@pytest.mark.parametrize("place", CASES)
def test_an_ordering_holds_where_it_is_true_and_is_refuted_where_the_opposite_is(place: int, draw: int) -> None:
    right, wrong = CASES[place]
    assert judged(place, made(right, draw=draw)).verdict == "holds"
    assert judged(place, made(wrong, draw=draw)).verdict == "refuted"


@pytest.mark.parametrize("place", CASES)
def test_an_ordering_is_undecided_where_seeds_disagree(place: int) -> None:
    right, _ = CASES[place]
    assert judged(place, ladder(right, noise=0.2, bytes_per_parameter=FEW)).verdict == "undecided"
    assert judged(place, made(right, seeds=(1,))).verdict == "undecided"


def test_without_rows_there_is_no_verdict() -> None:
    found = judge(tables(made({})))
    assert [one.verdict for one in found] == ["no data"] * 7 and [one.name for one in found] == NAMES


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "holds"), (-0.02, "holds"), (0.003, "holds"), (0.03, "refuted")])
def test_one_worker_is_no_worse_within_half_a_percent(gap: float, verdict: str) -> None:
    """`noise` of 0.0005 leaves an interval of about ±0.002, so that 0.3 % is surely below 0.5 %."""
    alone = [replace(run, workers=1) for run in made({"diloco(30)": gap}) if run.sentence != "bsp"]
    assert judged(ALONE, [*made({"diloco(30)": 0.05}), *alone]).verdict == verdict


@pytest.mark.parametrize(("shrinks", "verdict"), [(0.5, "holds"), (2.0, "refuted"), (1.0, "undecided")])
def test_the_gap_shrinks_with_the_size(shrinks: float, verdict: str) -> None:
    found = judged(SIZE, made({"diloco(30)": 0.02}, rungs=("breadth", "depth", "confirm"), shrinks=shrinks))
    assert found.verdict == verdict
    assert [pair.better for pair in found.pairs] == ["diloco(30) on 10 M", "diloco(30) on 30 M"]


def test_sparse_methods_with_too_many_bytes_refute_the_ordering() -> None:
    gaps, _ = CASES[SPARSELOCO]
    many = ladder(gaps, noise=0.0005, bytes_per_parameter={"diloco(30)": 0.235, SPARSE.format(32): 0.005})
    found = judged(SPARSELOCO, many)
    assert found.verdict == "refuted" and found.pairs[0].fewer_bytes == pytest.approx(47)
    also_few = {**gaps, SPARSE.format(128): 0.01}
    wide = {**FEW, SPARSE.format(128): 0.02}  # another setting with more bytes is not the one that is compared
    assert judged(SPARSELOCO, ladder(also_few, noise=0.0005, bytes_per_parameter=wide)).verdict == "holds"


def test_of_several_settings_the_one_that_rate_rows_prefer_is_compared() -> None:
    """The reported rows of the other setting are better, which must not matter."""
    gaps = {"diloco(30)": 0.01, "diloco(30, lr=0.4)": 0.02, "local(30)": 0.015}
    runs = [
        replace(run, loss=0.9 * run.final) if run.purpose == "rate" and "0.4" in run.sentence else run
        for run in made(gaps)
    ]
    assert judged(NESTEROV, made(gaps)).verdict == "holds"
    assert judged(NESTEROV, runs).verdict == "refuted"


def test_methods_of_other_optimizers_are_not_compared() -> None:
    muon = [replace(run, optimizer="muon") for run in made({"local(30)": 0.05}) if run.sentence != "bsp"]
    assert judged(NESTEROV, [*made({"diloco(30)": 0.01}), *muon]).verdict == "no data"


def test_a_method_that_diverges_in_every_seed_is_the_worse_one() -> None:
    def diverged(sentence: str, seeds: tuple[int, ...]) -> list[Run]:
        return [
            replace(run, loss=None) if run.sentence == sentence and run.seed in seeds else run
            for run in made(CASES[MEMORY][0])
        ]

    assert judged(MEMORY, diverged(TWO_BITS, (1, 2, 3))).verdict == "holds"
    assert judged(MEMORY, diverged(WITH_MEMORY, (1, 2, 3))).verdict == "refuted"
    assert judged(MEMORY, diverged(WITH_MEMORY, (2,))).verdict == "undecided"


LOSSES = st.fixed_dictionaries({seed: st.floats(0.5, 2.0) for seed in (1, 2, 3)})


@given(LOSSES, LOSSES)
def test_the_opposite_of_what_holds_is_refuted(ours: dict[int, float], theirs: dict[int, float]) -> None:
    opposite = {"holds": "refuted", "refuted": "holds", "undecided": "undecided"}
    one, other = (Pair("", "", "", *losses).verdict for losses in ((ours, theirs), (theirs, ours)))
    assert other == opposite[one]


@given(LOSSES, LOSSES, st.floats(1.0, 1.5))
def test_a_smaller_loss_never_turns_a_verdict_to_refuted(
    ours: dict[int, float], theirs: dict[int, float], factor: float
) -> None:
    before = Pair("", "", "", ours, theirs).verdict
    after = Pair("", "", "", {seed: loss / factor for seed, loss in ours.items()}, theirs).verdict
    order = ("refuted", "undecided", "holds")
    assert order.index(after) >= order.index(before)
