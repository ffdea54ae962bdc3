"""Federated learning between real processes: the virtual run's parameters, and kills in the middle of rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from laconic.errors import LaconicError
from laconic.federated.processes.launch import run_processes
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from tests.federated.processes import three_ways
from tests.federated.processes.inside import HERE, Recorded, federation

TIMEOUT = 280.0


@pytest.mark.long
@pytest.mark.parametrize("sentence", three_ways.SENTENCES)
def test_processes_learn_what_virtual_clients_do(sentence: str, tmp_path: Path) -> None:
    setting = federation(5, 1)
    real = run_processes(setting, sentence, tmp_path, processes=2, timeout_seconds=TIMEOUT)
    virtual = simulate(setting.learned, setting.population, sentence, 5, rate=setting.rate, seed=1)
    torch.testing.assert_close(real.parameters, virtual.parameters, rtol=0, atol=1e-6)
    assert [step.clients for step in real.steps] == [step.clients for step in virtual.steps]
    assert (real.up_bytes == virtual.up_bytes).all()


@pytest.mark.long
def test_a_client_killed_at_its_work_and_a_server_killed_before_it_aggregates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("FRAGILE", str(marks))
    setting = federation(5, 0)
    sentence = f"{HERE}:Fragile(clients=4) / topk(0.3)+ef"
    real = run_processes(
        setting, sentence, tmp_path / "run", processes=2, heartbeat_seconds=3.0, timeout_seconds=TIMEOUT
    )
    assert (marks / "client died").exists() and (marks / "server died").exists()
    assert len(real.steps) == 5 and all(len(set(step.clients)) == len(step.clients) for step in real.steps)
    took_part = tuple(step.clients for step in real.steps if step.clients)
    strategy = replace(FederatedStrategy.parse(sentence), rule=Recorded(clients=4, took_part=took_part))
    virtual = simulate(setting.learned, setting.population, strategy, len(took_part), rate=setting.rate)
    torch.testing.assert_close(real.parameters, virtual.parameters, rtol=0, atol=1e-6)
    again = run_processes(setting, sentence, tmp_path / "run", processes=2, timeout_seconds=TIMEOUT)
    torch.testing.assert_close(again.parameters, real.parameters, rtol=0, atol=0)  # a run that is over stays so
    assert len(again.steps) == 5


@pytest.mark.long
def test_a_run_whose_processes_all_fail_ends_with_the_place_of_their_logs(tmp_path: Path) -> None:
    setting = federation(2, 0, task="nothing")
    with pytest.raises(LaconicError, match=r"see .*logs"):
        run_processes(setting, "fedavg(clients=2)", tmp_path, processes=1, restarts=0, timeout_seconds=TIMEOUT)
