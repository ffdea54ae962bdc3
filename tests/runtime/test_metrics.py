"""What a worker logs: numbers, a file per rank, and targets reached from either side."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import laconic
from laconic.runtime import metrics
from laconic.runtime.metrics import MetricLog
from laconic.values.run_config import RunConfig


def test_targets_are_reached_from_the_side_the_metric_began(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = MetricLog(0, RunConfig(folder=str(tmp_path), targets={"loss": 1.6, "accuracy": 0.9}))
    for loss, accuracy in [(2.3, 0.1), (1.7, 0.5), (1.5, 0.8), (1.4, 0.95), (1.3, 0.97)]:
        record.add({"loss": loss, "accuracy": accuracy})
    message = capsys.readouterr().err
    assert message.count("target loss=1.6 reached") == message.count("target accuracy=0.9 reached") == 1
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()]
    assert [k for k, line in enumerate(lines) if "reached" in line] == [3, 5]
    assert sum("loss" in line for line in lines) == 5


def test_a_target_is_judged_by_the_name_and_a_first_value_that_is_no_number_decides_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"loss": 0.5, "val_accuracy": 0.8, "train_error": 0.1, "something": 2.0}
    record = MetricLog(0, RunConfig(targets=targets))
    record.add({"loss": 0.4, "val_accuracy": 0.9, "train_error": 0.05, "something": math.nan})
    assert record.reached == {"loss", "val_accuracy", "train_error"}
    record.add({"something": 3.0})
    assert "something" not in record.reached
    record.add({"something": 1.0})
    assert "something" in record.reached
    diverging = MetricLog(0, RunConfig(targets={"loss": 0.5}))
    for loss in (math.nan, 9.0, math.inf):
        diverging.add({"loss": loss})
    assert not diverging.reached


def test_every_simulation_logs_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laconic.log(something=1.0)  # this process's own, before it is connected
    config = RunConfig(folder=str(tmp_path), targets={"something": 2.0})
    monkeypatch.setenv(*next(iter(config.to_env().items())))

    def script() -> tuple[int, float | None]:
        before = metrics.serial()
        laconic.log(something=3.0)
        laconic.log(something=2.0 - laconic.rank())
        return before, metrics.latest("something")

    for _ in range(2):
        assert laconic.simulate(script, 2).results == [(0, 2.0), (0, 1.0)]
    for rank in range(2):
        lines = (tmp_path / "metrics" / f"rank-{rank}.jsonl").read_text().splitlines()
        assert sum("reached" in line for line in lines) == 2, "once in each simulation"
    assert metrics.latest("something") == 1.0


@pytest.mark.long
def test_what_is_logged_before_connecting_stays_with_the_process() -> None:
    code = """
import laconic
from laconic.runtime import metrics
laconic.log(loss=3.0)
from laconic.real.connect import connect
connect()
assert metrics.latest("loss") == 3.0 and metrics.serial() == 1
laconic.log(loss=2.0)
assert metrics.serial() == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_log_takes_numbers_and_refuses_the_rest() -> None:
    laconic.log(loss=torch.tensor(1.0), accuracy=1)
    with pytest.raises(laconic.ContractError, match="takes a number, not str"):
        laconic.log(loss="low")
    with pytest.raises(laconic.ContractError, match=r"not a tensor of shape \[2\]: log its mean"):
        laconic.log(loss=torch.zeros(2))


@pytest.mark.filterwarnings("error")
def test_a_loss_that_requires_a_gradient_is_logged_without_a_warning() -> None:
    laconic.log(loss=torch.ones((), requires_grad=True) * 2)
    assert metrics.latest("loss") == 2.0
