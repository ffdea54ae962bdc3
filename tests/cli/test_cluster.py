"""`laconic cluster`: what it prints, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app

TRACE = """timestamp,duration,num_gpus,gpu_time,cluster
2020-01-01 00:00:00,100.0,2,200.0,a
2020-01-01 00:00:10,1000.0,2,2000.0,a
2020-01-01 00:00:20,10.0,1,10.0,b
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cluster", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_policies_are_listed() -> None:
    shown = said("list")
    assert "fifo" in shown and "srtf" in shown and "in the order of their arrivals" in shown


def test_policies_are_compared_the_fastest_first(trace: Path) -> None:
    shown = said("compare", str(trace), "--policy", "fifo", "--policy", "srtf", "--hosts", "1", "--gpus", "2")
    assert shown.index("| srtf") < shown.index("| fifo")


def test_a_replay_writes_a_row_for_each_job(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    said("replay", str(trace), "--policy", "srtf", "--hosts", "1", "--gpus", "2", "--restart", "5", "--out", str(out))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["completed"]) for row in rows] == [115.0, 1115.0, 30.0]  # preempted at 20 s, restored at 30 s
    assert [float(row["placing"]) for row in rows] == [5.0, 0.0, 0.0]


def test_what_became_of_a_job_is_told(trace: Path) -> None:
    shown = said("explain", str(trace), "job0", "--policy", "srtf", "--hosts", "1", "--gpus", "2")
    assert "is preempted  (upon Arrival 2)" in shown and "is done" in shown


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("no technique is called nothing", ["--policy", "nothing"]),
        ("topk belongs to compression", ["--policy", "topk"]),
        ("asks for 2 GPUs of 1", ["--hosts", "1", "--gpus", "1"]),
        ("has no jobs of c", ["--tenant", "c"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(trace: Path, words: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["cluster", "replay", str(trace), *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception) + result.output
