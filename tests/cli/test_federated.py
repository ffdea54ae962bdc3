"""`laconic federated`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from laconic.cli.app import app

TASK = """
import torch
from laconic.federated.task import Classification

def mine():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    return Classification(lambda: torch.nn.Linear(4, 2), x[:40], y[:40], x[40:], y[40:])

def unlabelled():
    return object()
"""


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["federated", *arguments])
    assert result.exit_code == 0, str(result.exception) + result.output
    return result.output


def written(*arguments: str, out: Path) -> dict[str, Any]:
    said(*arguments, "--out", str(out))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.long
def test_sentences_are_compared_by_bytes_to_a_target(tmp_path: Path) -> None:
    out, page = tmp_path / "found.json", tmp_path / "page.html"
    arguments = [
        "compare",
        "fedavg(clients=5)",
        "fedavg(clients=5) / topk(0.05)+ef",
        "--clients",
        "20",
        "--steps",
        "20",
    ]
    shown = said(*arguments, "--rate", "0.3", "--target", "accuracy=0.8", "--out", str(out), "--page", str(page))
    plain, sparse = json.loads(out.read_text())["runs"]
    assert plain["sentence"] == "fedavg(5) / none / server" and plain["sentence"] in shown
    assert plain["to_target"]["up_bytes"] > 5 * sparse["to_target"]["up_bytes"] > 0
    reached = plain["to_target"]["steps"]
    judged = [(k, step["scores"]["accuracy"]) for k, step in enumerate(plain["steps"], 1) if step["scores"]]
    assert next(k for k, accuracy in judged if accuracy >= 0.8) == reached > judged[0][0]
    assert plain["to_target"]["up_bytes"] == plain["steps"][reached - 1]["up_bytes"] == reached * 5 * 4 * 2410
    assert sum(plain["up_bytes"]) == plain["steps"][-1]["up_bytes"]
    text = page.read_text()
    assert "Who holds what" in text and "fedavg(5) / topk(0.05)+error_feedback / server" in text


def test_a_file_says_what_is_learned_by_whom(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASK)
    file = tmp_path / "federation.toml"
    file.write_text(
        f'task = "{tmp_path}/tasks.py:mine"\nclients = 8\npartition = "by_label"\nshards_each = 1\nsteps = 4\n'
        'evaluate_every = 2\nstrategies = ["fedavg(clients=3)"]\n'
    )
    found = written("run", str(file), "--steps", "6", out=tmp_path / "a.json")
    assert [bool(step["scores"]) for step in found["runs"][0]["steps"]] == [False, True] * 3
    assert found["federation"]["clients"] == 8 and len(found["runs"][0]["up_bytes"]) == 8
    other = written("run", str(file), "--steps", "6", "--seed", "1", out=tmp_path / "b.json")
    assert other["runs"][0]["steps"][0]["clients"] != found["runs"][0]["steps"][0]["clients"]


@pytest.mark.long
def test_a_plan_says_what_a_run_then_takes(tmp_path: Path) -> None:
    sentences = ["fedavg(clients=4)", "scaffold(clients=4)", 'fedavg(clients=4) / topk(0.1)+ef / server(down="int8")']
    common = [*sentences, "--clients", "12", "--partition", "iid"]
    plans = written("plan", *common, out=tmp_path / "plan.json")["plans"]
    runs = written("compare", *common, "--steps", "10", out=tmp_path / "runs.json")["runs"]
    for plan, run in zip(plans, runs, strict=True):
        assert plan["parameters"] == 2410
        assert sum(run["up_bytes"]) == 10 * 4 * plan["up_bytes"]
        assert run["seconds"] / 10 == pytest.approx(plan["step_seconds"], rel=0.15)
        assert sum(run["down_bytes"]) / 40 == pytest.approx(plan["down_bytes"], rel=0.15)
    assert plans[1]["up_bytes"] == 2 * plans[0]["up_bytes"] == 2 * 4 * 2410
    assert plans[2]["down_bytes"] < plans[2]["whole_bytes"] == 4 * 2410


def test_a_plan_of_a_size_needs_no_data(tmp_path: Path) -> None:
    arguments = ["plan", "fedavg(clients=100)", "--clients", "200000", "--parameters", "3e5", "--up", "1Mbit"]
    (plan,) = written(*arguments, out=tmp_path / "plan.json")["plans"]
    assert plan["up_bytes"] == plan["down_bytes"] == 1_200_000
    assert plan["step_seconds"] > 9.6  # the bytes alone take that long


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("names no rule", ["run", "topk(0.1)"]),
        ("no task is called letters", ["run", "--task", "letters"]),
        ("fewer than 5000 clients", ["run", "--clients", "5000"]),
        ("Invalid enum value", ["run", "--partition", "fairly"]),
        ("is not NAME=VALUE", ["run", "--target", "accuracy"]),
        ("names no groups", ["run", "--partition", "natural"]),
        ("there is no federation at", ["run", "nowhere.toml"]),
        ("has no unit", ["plan", "--up", "10"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(words: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["federated", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception) + result.output


def test_a_task_without_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASK)
    result = CliRunner().invoke(app, ["federated", "run", "--task", f"{tmp_path}/tasks.py:unlabelled"])
    assert result.exit_code != 0 and "has no labels" in str(result.exception)
