"""What a worker logs: numbers, a file per rank, and targets reached from either side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import laconic
from laconic.engine.config import RunConfig
from laconic.engine.metrics import Record


def test_targets_are_reached_from_the_side_the_metric_began(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(0, RunConfig(folder=str(tmp_path), targets={"loss": 1.6, "accuracy": 0.9}))
    for loss, accuracy in [(2.3, 0.1), (1.7, 0.5), (1.5, 0.8), (1.4, 0.95), (1.3, 0.97)]:
        record.take({"loss": loss, "accuracy": accuracy})
    said = capsys.readouterr().err
    assert said.count("target loss=1.6 reached") == said.count("target accuracy=0.9 reached") == 1
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines()]
    assert [k for k, line in enumerate(lines) if "reached" in line] == [3, 5]
    assert sum("loss" in line for line in lines) == 5


def test_log_takes_numbers_and_refuses_the_rest() -> None:
    laconic.log(loss=torch.tensor(1.0), accuracy=1)
    with pytest.raises(laconic.ContractError, match="takes a number, not str"):
        laconic.log(loss="low")
    with pytest.raises(laconic.ContractError, match="takes a number, not Tensor"):
        laconic.log(loss=torch.zeros(2))
