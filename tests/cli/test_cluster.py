"""`laconic cluster`: what it prints, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.journal import Journal
from laconic.cluster.readers.jobs_file import read_jobs
from laconic.cluster.replay import replay
from laconic.language.grammar import parse_policy

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
    assert shown.index("(upon Arrival 2)") < shown.index("3 order     srtf: is preempted") < shown.index("is done")
    steps = ["1 profile", "2 allocate", "3 order", "4 arrange", "5 flows", "6 run"]
    assert [" ".join(line.split()[:2]) for line in shown.splitlines()[2:8]] == steps


JOBS = """
[[job]]
name = "long"
gpus = 2
steps = 100
model_bytes = 1e9
[[job]]
name = "short"
gpus = 2
arrival = 10.0
steps = 20
model_bytes = 1e9
[[job]]
name = "wide"
gpus = 4
arrival = 12.0
seconds = 5.0
"""


def test_a_run_with_a_network_and_a_journal_of_a_run_are_explained(tmp_path: Path) -> None:
    jobs, journal, policy = tmp_path / "jobs.toml", tmp_path / "journal.jsonl", 'workflow(table, order="srtf")'
    jobs.write_text(JOBS)
    shown = said("explain", str(jobs), "short", "--hosts", "4", "--gpus", "1", "--network", "10Gbit")
    assert "1 messages; an iteration takes 1.3 s alone, of computing 0.5 s and sending 0.8 s" in shown

    writer = Journal(journal)  # as the controller of a Ray cluster begins and ends it
    writer.write("began", at=0.0, pid=1, policy="", jobs=["long", "short", "wide"], hosts=[["a", 2], ["b", 2]])
    found = [job for job, _ in read_jobs(jobs)]
    cluster = Cluster((Host("a", 2), Host("b", 2)))
    outcome = replay(found, cluster, parse_policy(policy), journal=writer)
    writer.write("completed", job=0, at=outcome.completed[0], row=[0.0] * 8 + outcome.parts[:, 0].tolist(), failed="")
    shown = said("explain", str(jobs), "long", "--policy", policy, "--journal", str(journal))
    assert "3 order     srtf: is preempted" in shown and "2 on a: 2 of work a second" in shown
    assert f"{outcome.completed[0]:.1f} s  is done" in shown


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


def test_the_fewest_hosts_that_do_are_found(trace: Path) -> None:
    shown = said("plan", str(trace), "--mean", "371", "--gpus", "2", "--policy", "fifo", "--policy", "srtf")
    cells = [[cell.strip() for cell in line.split("|")] for line in shown.splitlines() if line.startswith("| ")][1:]
    assert {row[1]: row[2:4] for row in cells} == {
        "fifo": ["3", "6"],
        "srtf": ["3", "6"],
    }
    shown = said("plan", str(trace), "--mean", "430", "--gpus", "2", "--policy", "fifo")
    assert "| fifo   | 2     | 4" in shown
    assert "no number does" in said("plan", str(trace), "--slowest", "500", "--gpus", "2")
    result = CliRunner().invoke(app, ["cluster", "plan", str(trace)])
    assert "give --mean or --slowest" in str(result.exception)
