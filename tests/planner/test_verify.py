"""Short trainings of a script: which candidates are compared, what is shown of it, and which error is raised when
nothing is logged."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.planner.verify import read_budget, verify
from laconic.planner.verify_results import Logged, Trained, VerifyError, curve_of
from laconic.strategy import Strategy

SCRIPT = """
import argparse
import itertools
import torch
import laconic

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--metric", default="loss")
args = parser.parse_args()
torch.manual_seed(args.seed)
model = torch.nn.Linear(64, 4, bias=False)
truth = torch.randn(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model, optimizer = laconic.distribute(model, optimizer)
draw = torch.Generator().manual_seed(100 * args.seed + laconic.rank())
for step in range(args.steps) if args.steps else itertools.count():
    x = torch.randn(64, 64, generator=draw)
    loss = ((model(x) - x @ truth) ** 2).mean()
    if args.metric:
        laconic.log(**{args.metric: loss.item()})
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.long
def test_all_that_comes_of_a_training(script: str) -> None:
    """To the script's own end: an exact strategy, a lossy one, one that diverges, one that cannot train this script."""
    result: list[tuple[float, str]] = []
    sentences = ["bsp", "bsp / none / allreduce / sequential", "bsp / topk(0.1)+ef", "bsp / randk(0.02)", "frozen_adam"]
    out = verify(
        [script, "--steps", "120"], sentences, 2, "1gbit", None, 300.0, lambda share, what: result.append((share, what))
    )
    assert [one.rank for one in out.trained] == [1, 2, 3, 4, 5] and out.baseline == "bsp"
    exact, sparse, wild, failed = (out.of(sentences[k]) for k in (0, 2, 3, 4))
    assert {out.trained[0].strategy, out.trained[1].strategy} == set(sentences[:2])
    assert exact.finished and exact.steps == 120 and exact.compared_step > 0
    assert [at.loss for at in exact.curve] == [at.loss for at in out.of(sentences[1]).curve]  # the same mathematics
    assert exact.loss is not None and sparse.loss is not None and exact.loss < sparse.loss
    assert wild.diverged is not None and "not finite from step" in wild.diverged and wild.rank == 4
    assert failed.error is not None and "frozen_adam" in failed.error and failed.rank == 5 and failed.loss is None
    for one in (exact, sparse):
        seconds, sent = ([getattr(at, name) for at in one.curve] for name in ("seconds", "sent_bytes"))
        assert seconds == sorted(seconds) and sent == sorted(sent) and seconds[-1] > seconds[0] >= 0
        assert all(at.low <= at.loss <= at.high for at in one.curve)
    assert sparse.curve[-1].sent_bytes < exact.curve[-1].sent_bytes
    assert sparse.curve[-1].seconds < exact.curve[-1].seconds
    assert [share for share, _ in result] == sorted(share for share, _ in result) and result[0][1] == "starting `bsp`"
    table = json.loads(out.to_json())
    assert table["laconic_verified"] == 1 and len(table["trained"]) == 5
    assert table["trained"][0]["curve"][0]["loss"] == out.best.curve[0].loss


@pytest.mark.long
def test_seeds_are_given_to_the_script_and_spread_the_losses(script: str) -> None:
    out = verify([script, "--steps", "20"], ["bsp"], 2, budget_seconds=300.0, seeds=(1, 2))
    assert out.seeds == (1, 2) and out.best.finished
    assert all(at.low < at.loss < at.high for at in out.best.curve)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("", r"train\.py made 10 steps and rank 0 logged no loss.*`laconic\.log\(loss=loss\.item\(\)\)` after"),
        ("nats", r"it logs nats: name one of these"),
    ],
)
def test_a_script_that_logs_nothing_is_told_which_line_to_add(script: str, metric: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify([script, "--steps", "10", "--metric", metric], ["bsp"], 2, budget_seconds=300.0)


def test_a_baseline_that_cannot_train_ends_it(script: str) -> None:
    with pytest.raises(VerifyError, match=r"the baseline `frozen_adam` does not train: exit code"):
        verify([script], ["frozen_adam"], 2, budget_seconds=300.0)


def test_what_makes_no_sense_is_refused_before_anything_starts(script: str) -> None:
    with pytest.raises(VerifyError, match="a budget of 0 s trains nothing"):
        verify([script], ["bsp"], 2, budget_seconds=0)
    with pytest.raises(VerifyError, match="no strategy"):
        verify([script], [], 2)
    with pytest.raises(LaconicError, match="tpok"):
        verify([script], ["bsp / tpok"], 2)
    with pytest.raises(LaconicError, match="does not exist"):
        verify([script + "x"], ["bsp"], 2)


@pytest.mark.long
def test_the_worse_half_leaves_and_the_baseline_stays(script: str) -> None:
    """A script without an end, and a budget; the baseline learns slowly, however many steps a fast machine makes."""
    sentences = ["bsp / randk(0.01, scaled=false)", "bsp", "bsp / none / allreduce / sequential", "bsp / topk(0.01)"]
    out = verify([script], sentences, 2, budget_seconds=25.0, parallel=2)
    baseline, best = out.of(sentences[0]), out.best
    assert best.strategy in sentences[1:3] and not best.finished
    assert baseline.rounds == best.rounds == 2 and baseline.compared_step == best.compared_step
    assert baseline.rank > 2  # it stayed to be compared with, not because it was better
    left = [one for one in out.trained if one.rounds == 1]
    assert left and all(one.rank > best.rank and one.compared_step < best.compared_step for one in left)


@pytest.mark.long
@pytest.mark.parametrize("least", [7, 40])
def test_none_leaves_before_the_length_that_was_shown_to_predict(script: str, least: int) -> None:
    sentences = ["bsp", "bsp / cast_bf16", "bsp / topk(0.02)+ef", "bsp / topk(0.05)+ef"]
    out = verify([script, "--steps", "60"], sentences, 2, "1gbit", None, 300.0, least_steps=least)
    worse = [out.of(text) for text in sentences[2:]]
    assert [one.compared_step for one in worse] == [least] * 2 == [one.steps for one in worse]
    assert all(out.of(text).steps > least for text in sentences[:2]) and out.reached


@pytest.mark.long
def test_where_the_script_ends_before_that_all_are_compared_at_its_end(script: str) -> None:
    sentences = ["bsp", "bsp / topk(0.02)+ef", "bsp / topk(0.05)+ef"]
    out = verify([script, "--steps", "20"], sentences, 2, "1gbit", None, 300.0, least_steps=1000)
    assert {(one.compared_step, one.rounds) for one in out.trained} == {(20, 1)}
    assert out.reached and not replace(out, trained=(replace(out.best, finished=False),)).reached


PHASES = "bsp until step 300, then bsp / topk(0.02)+ef"


@pytest.mark.long
def test_phases_keep_their_shares_in_a_short_training(script: str) -> None:
    """Of the script's 40 steps a tenth, as of 3000."""
    scaled, sentences = PHASES.replace("300", "4"), ["bsp", PHASES, "bsp / topk(0.02)+ef"]
    out = verify([script, "--steps", "40"], sentences, 2, budget_seconds=300.0, seeds=(1, 2), run_steps=3000)
    as_it_is = verify([script, "--steps", "40"], ["bsp", scaled], 2, budget_seconds=300.0, seeds=(1, 2)).of(scaled)
    found = out.of(PHASES)
    assert found.trained_as == str(Strategy.parse(scaled)) and not out.of(sentences[2]).trained_as
    assert found.finished and found.compared_step == 40 == found.steps and out.reached
    curves = [[at.loss for at in one.curve] for one in (found, as_it_is, out.of(sentences[2]))]
    assert curves[0] == curves[1] != curves[2]


@pytest.mark.long
def test_phases_are_scaled_to_each_round(script: str) -> None:
    """The gentle ones stay and are trained to the end, the harsh ones leave as they were in the first round."""
    gentle, harsh = "bsp until step 300, then bsp / cast_bf16", "bsp until step 300, then bsp / topk(0.01)"
    sentences = ["bsp", gentle, harsh, "bsp / topk(0.02)"]
    out = verify([script, "--steps", "60"], sentences, 2, budget_seconds=300.0, least_steps=20, run_steps=3000)
    assert {one.strategy: (one.compared_step, one.rounds) for one in out.trained} == {
        **dict.fromkeys(sentences[:2], (60, 2)),
        **dict.fromkeys(sentences[2:], (20, 1)),
    }
    assert out.of(gentle).trained_as == str(Strategy.parse(gentle.replace("300", "6")))
    assert out.of(harsh).trained_as == str(Strategy.parse(harsh.replace("300", "2")))
    assert out.reached


@pytest.mark.long
def test_phases_that_cannot_be_trained_say_why(script: str) -> None:
    narrow = "bsp until step 10, then local(2) until step 20, then bsp / topk(0.02)+ef"
    frozen = "bsp until step 300, then frozen_adam"
    out = verify([script, "--steps", "20"], ["bsp", narrow, frozen], 2, budget_seconds=300.0, run_steps=3000)
    assert "its phases do not fit into 20 steps" in (out.of(narrow).error or "")
    assert "frozen_adam" in (out.of(frozen).error or "") and out.best.strategy == "bsp"


def test_budgets_are_read_as_people_write_them() -> None:
    assert [read_budget(text) for text in ("120s", "5min", " 1.5 h", 7, "30")] == [120, 300, 5400, 7, 30]
    with pytest.raises(LaconicError, match='"soon" is no time'):
        read_budget("soon")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-10, 10), max_size=100), st.integers(1, 30), st.integers(1, 3))
def test_a_curve_keeps_the_mean_and_the_order(values: list[float], points: int, seeds: int) -> None:
    runs = [[Logged(k, 0.1 * k, 8.0 * k, value) for k, value in enumerate(values)]] * seeds
    curve = curve_of(runs, points)
    assert len(curve) == min(points, len(values))
    assert [at.seconds for at in curve] == sorted(at.seconds for at in curve)
    if curve:
        assert min(values) <= min(at.low for at in curve) and max(at.high for at in curve) <= max(values)
    if values and len(values) % len(curve) == 0:
        mean = sum(at.loss for at in curve) / len(curve)
        assert mean == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_values_that_are_not_finite_are_left_out_of_curves() -> None:
    run = [Logged(k, float(k), float(k), value) for k, value in enumerate((3.0, 2.0, math.nan, math.inf))]
    assert [at.loss for at in curve_of([run])] == [3.0, 2.0]


def test_a_loss_is_read_between_points() -> None:
    run = [Logged(k, float(k), 0.0, 10.0 - k) for k in range(4)]
    one = Trained("bsp", 1, 4, None, None, None, 0, 1, True, curve_of([run]))
    assert [one.loss_at(seconds) for seconds in (0.0, 1.5, 3.0, 3.1, -1.0)] == [10.0, 8.5, 7.0, None, None]
