"""Phases over a whole run: prices weighed by shares of its steps, in the plan as in the frontier, and their losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from laconic.frontier.clock import Clock, Traffic
from laconic.frontier.shapes import Shape
from laconic.network.network_tree import Network
from laconic.planner import risk
from laconic.planner.advise import advise
from laconic.planner.certainty import step_errors
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import Deployment
from laconic.planner.networks import links_of
from laconic.planner.phases import by_shares, phases_of, rescaled
from laconic.planner.plan import _worth_verifying, plan
from laconic.planner.preferences import Preferences
from laconic.planner.price import Pricer
from laconic.planner.risk import measured_steps, measured_strategies, of_runs, risk_of, training_of
from laconic.planner.step_price import StepPrice, mean
from laconic.planner.values import Advice, PlanError
from laconic.strategy import Strategy
from tests.planner.test_price import PROFILE
from tests.planner.test_risk import run

DENSE_START = "bsp until step 300, then bsp / power_sgd(4)+ef"
COMPRESSED = "bsp / power_sgd(4)+ef"
WAITING = "bsp until loss<2.0, then bsp / power_sgd(4)+ef"
ONE_BIT_ADAM = "bsp until step 500, then frozen_adam / flat+scaled_sign+two_hop(memory=true)+ef"
NETWORK = Network.flat(8, 5e7, 1e-4)


def pricer(steps: int | None) -> Pricer:
    return Pricer(Deployment(PROFILE, NETWORK, 8, steps=steps))


# ------------------------------------------------------------------------------------------------ prices


def test_a_mean_price_by_hand() -> None:
    """A quarter of the steps as one, three quarters as the other."""
    found = mean([(StepPrice(1.0, 2.0, 3.0, 4.0), 0.25), (StepPrice(5.0, 6.0, 7.0, 8.0), 0.75)])
    assert found == StepPrice(4.0, 5.0, 6.0, 7.0)
    assert found.seconds == 15.0


@pytest.mark.parametrize(("text", "later"), [(DENSE_START, COMPRESSED), (ONE_BIT_ADAM, ONE_BIT_ADAM.split("then ")[1])])
def test_a_dense_start_is_priced_over_the_whole_run(text: str, later: str) -> None:
    end = 300 if text == DENSE_START else 500
    first, second, whole = (pricer(10 * end).price(part) for part in ("bsp", later, text))
    assert second.seconds < first.seconds
    assert whole.seconds == pytest.approx(0.1 * first.seconds + 0.9 * second.seconds, rel=1e-12)
    assert whole.sent_bytes == pytest.approx(0.1 * first.sent_bytes + 0.9 * second.sent_bytes, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "steps", "counts"),
    [(DENSE_START, None, COMPRESSED), (WAITING, 3000, COMPRESSED), (DENSE_START, 300, "bsp"), (DENSE_START, 9, "bsp")],
    ids=["a run of unknown length", "an end that is not known", "over with the first", "over before its end"],
)
def test_one_phase_counts_for_all(text: str, steps: int | None, counts: str) -> None:
    assert pricer(steps).price(text).seconds == pricer(steps).price(counts).seconds


def test_a_phase_without_a_price_is_named() -> None:
    with pytest.raises(PlanError, match=r"`adacomm.*cannot be priced"):
        pricer(1000).price("bsp until step 100, then adacomm")


@pytest.mark.parametrize("text", [DENSE_START, ONE_BIT_ADAM, WAITING, "bsp", "bsp until step 4000, then local(8)"])
def test_plan_and_frontier_agree(text: str) -> None:
    shape, strategy = Shape(10e6, 8), Strategy.parse(text)
    deployment = Deployment(
        shape.profile(), links_of("1Gbit", 8).network, shape.workers, codecs=codecs_on(shape.chip), steps=3000
    )
    ours, theirs = Pricer(deployment).price(strategy), Clock(shape).step(strategy, Traffic(0.0, 1, 3000), 1e9)
    assert theirs.priced
    assert (theirs.seconds, theirs.sent_bytes) == (ours.seconds, ours.sent_bytes)
    assert (theirs.low_factor, theirs.high_factor) == step_errors(strategy)


def test_another_network_or_length_changes_the_price_of_phases() -> None:
    short, long = pricer(1000), pricer(3000)
    seconds = long.price(DENSE_START).seconds
    assert short.price(DENSE_START, 3000).seconds == seconds < short.price(DENSE_START).seconds
    assert long.on(NETWORK).price(DENSE_START).seconds == seconds
    assert long.on(Network.flat(8, 1e9, 1e-4)).price(DENSE_START).seconds < seconds


def test_phases_are_predicted_as_well_as_what_most_of_the_run_is() -> None:
    assert step_errors(Strategy.parse(DENSE_START)) == step_errors(Strategy.parse(COMPRESSED))


# ------------------------------------------------------------------------------------------------ shares


def test_shares_are_those_of_the_steps() -> None:
    three = Strategy.parse("bsp until step 100, then local(4) until step 400, then local(16)")
    assert [share for _, share in phases_of(three, 1000)] == pytest.approx([0.1, 0.3, 0.6])
    assert [str(part).split(" ")[0] for part, _ in phases_of(three, 200)] == ["bsp", "local_sgd(4)"]


def test_the_same_shares_are_the_same_strategy() -> None:
    short, long = Strategy.parse(DENSE_START), Strategy.parse(DENSE_START.replace("300", "600"))
    assert by_shares(short, 3000) == by_shares(long, 6000) != by_shares(long, 3000)
    assert rescaled(short, 3000, 6000) == long
    assert rescaled(short, None, 6000) == rescaled(short, 3000, None) == short
    waiting = Strategy.parse(WAITING)
    assert by_shares(waiting, 3000) == by_shares(waiting, None) == ((waiting, 1.0, ()),)
    assert rescaled(waiting, 3000, 6000) == waiting


def test_an_end_is_at_least_one_step() -> None:
    assert str(rescaled(Strategy.parse(DENSE_START), 3000, 4)).startswith("bsp / none / allreduce until step 1, then")


# ------------------------------------------------------------------------------------------------ losses

SIZED = replace(PROFILE, kind="transformer", optimizer="adamw")
HERE = training_of(SIZED, 8)
LOSSES = {"bsp": 1.0, DENSE_START: 1.01, COMPRESSED: 1.5, "adacomm": 1.0}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trainings of 3000 steps in which the dense start made the difference."""
    facts = {"parameters": HERE.parameters, "steps": 3000, "full_steps": 3000}
    rows = [run(text, seed, loss + seed / 1000, **facts) for text, loss in LOSSES.items() for seed in (1, 2, 3)]
    known = tuple(of_runs(rows))
    monkeypatch.setattr(risk, "measured", lambda: known)
    yield


def test_a_risk_is_that_of_the_same_shares(measured: None) -> None:
    def known(text: str, steps: int | None) -> float | None:
        found = risk_of(text, replace(HERE, steps=steps))
        return None if found is None else found.loss_ratio

    longer = DENSE_START.replace("300", "1000")
    assert known(DENSE_START, 3000) == known(longer, 10_000) == pytest.approx(1.01, abs=1e-4)
    assert known(longer, 3000) is None, "a third of the steps is not a tenth"
    assert known(DENSE_START, None) is None and known(WAITING, 3000) is None
    assert known(COMPRESSED, 3000) == known(COMPRESSED, None) == pytest.approx(1.5, abs=1e-3)
    scheduled = "bsp / none / allreduce / mgwfbp until step 300, then bsp / power_sgd(4)+ef / allreduce / mgwfbp"
    assert known(scheduled, 3000) == known(DENSE_START, 3000), "a schedule changes no value"


def test_measured_strategies_end_their_phases_at_the_same_shares(measured: None) -> None:
    found = {steps: measured_strategies(replace(HERE, steps=steps)) for steps in (None, 3000, 30_000)}
    assert Strategy.parse(DENSE_START) in found[None] and Strategy.parse(DENSE_START) in found[3000]
    assert Strategy.parse(DENSE_START.replace("300", "3000")) in found[30_000]
    assert measured_steps(HERE) == 3000
    assert measured_steps(replace(HERE, parameters=10**9)) is measured_steps(replace(HERE, workers=3)) is None


def advised(budget: float, steps: int | None = None, **more: object) -> Advice:
    deployment = Deployment(SIZED, NETWORK, 8, steps=steps)
    return advise(deployment, "a model", "50mbit", Preferences(loss_budget=budget), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "end"), [(None, 300), (10_000, 1000)])
def test_a_dense_start_is_a_candidate_within_the_budget(measured: None, steps: int | None, end: int) -> None:
    dense_start = str(Strategy.parse(DENSE_START.replace("300", str(end))))
    within, without = advised(0.02, steps), advised(0.0, steps, consider=[dense_start])
    (option,) = (option for option in within.options if option.strategy == dense_start)
    assert option.risk is not None and option.risk.high < 1.02
    assert within.pays and within.best.strategy == dense_start
    assert without.best.strategy != dense_start
    (note,) = (note for note in within.notes if "phases" in note)
    assert f"over a run of {steps or 3000} steps" in note and ("--run-steps" in note) is (steps is None)


def test_other_shares_are_unknown_and_not_recommended(measured: None) -> None:
    other = str(Strategy.parse(DENSE_START.replace("300", "900")))
    found = advised(0.02, 3000, consider=[other])
    (option,) = (option for option in found.options if option.strategy == other)
    assert option.risk is None and found.best.strategy != other


def test_where_the_length_is_not_known_the_last_phase_counts_and_a_note_says_so() -> None:
    found = advise(Deployment(PROFILE, NETWORK, 8), "a model", "50mbit", consider=[DENSE_START, COMPRESSED])
    whole, last = (one for one in found.options if "power_sgd" in one.strategy)
    assert whole.step_seconds == last.step_seconds
    (note,) = (note for note in found.notes if "phases" in note)
    assert "--run-steps N" in note
    asked = advise(Deployment(PROFILE, NETWORK, 8), "a model", "50mbit", consider=[COMPRESSED])
    assert not any("phases" in note for note in asked.notes)


def test_memory_is_that_of_the_fullest_phase() -> None:
    found = advise(Deployment(PROFILE, NETWORK, 8), "a model", "b", consider=[DENSE_START, COMPRESSED, "bsp"])
    kept = {option.strategy: option.memory_bytes for option in found.options}
    dense_start, compressed, dense = (str(Strategy.parse(text)) for text in (DENSE_START, COMPRESSED, "bsp"))
    assert kept[dense_start] == kept[compressed] > kept[dense]


@pytest.mark.parametrize(("steps", "left_out"), [(3000, [WAITING]), (None, [DENSE_START, WAITING])])
def test_a_short_training_judges_phases_whose_shares_are_known(steps: int | None, left_out: list[str]) -> None:
    texts = [DENSE_START, COMPRESSED, WAITING]
    found = advise(Deployment(PROFILE, NETWORK, 8, steps=steps), "a model", "b", consider=texts)
    trained, said = _worth_verifying(found)
    assert sorted(trained) == sorted(str(Strategy.parse(text)) for text in texts if text not in left_out)
    for text, sentence in zip(left_out, sorted(said, key=lambda one: "loss<" in one), strict=True):
        assert sentence.startswith(f"`{Strategy.parse(text)}` was left out: ")
        assert ("--run-steps N" in sentence) is (text == DENSE_START)


# ------------------------------------------------------------------------------------------------ from the outside


def test_the_plan_of_a_model_takes_the_length_of_the_run() -> None:
    def seconds(run_steps: int) -> float:
        asked = {"workers": 8, "gpu": "v100", "network": "1gbit", "consider": [ONE_BIT_ADAM], "run_steps": run_steps}
        found = plan("resnet50", **asked)  # type: ignore[arg-type]
        return next(one.step_seconds for one in found.options if "until step 500" in one.strategy)

    assert seconds(500) > seconds(1000) > seconds(100_000)
    with pytest.raises(PlanError, match="--run-steps 0 makes no sense"):
        plan("resnet50", gpu="v100", run_steps=0)
