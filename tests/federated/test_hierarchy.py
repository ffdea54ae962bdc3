"""Aggregators between clients and the server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.errors import StrategyError
from laconic.federated.client_memory import InMemory, Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local, Trainer
from laconic.federated.partition import by_label
from laconic.federated.population import Population
from laconic.federated.rule import Report, Sent, weighted_sum
from laconic.federated.rules.fedavg import FedAvg
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.structure import Hierarchy
from tests.federated.digits import Quadratics, among_quadratics, digits


@pytest.mark.technique("bonawitz_two_level", check=1)
@pytest.mark.parametrize("seed", range(3))
def test_a_sum_of_sums_is_the_sum_for_any_split(seed: int) -> None:
    """Into one group, one each, and at random; in another order of adding, which shows in the last bits."""
    draw = np.random.default_rng(seed)
    vectors = [torch.tensor(draw.normal(size=1001), dtype=torch.float32) for _ in range(30)]
    weights = draw.dirichlet(np.ones(30)).tolist()
    exact = sum(w * v.double() for w, v in zip(weights, vectors, strict=True))
    differing = 0
    for edges in (np.zeros(30), np.arange(30), draw.integers(0, 2, 30), draw.integers(0, 7, 30)):
        reports = [Report(c, 0, 1, {"change": v}, {}, edge=int(edges[c])) for c, v in enumerate(vectors)]
        found = weighted_sum(reports, weights)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-6)
        differing += not torch.equal(found, weighted_sum([Report(*_plain(r)) for r in reports], weights))
    assert differing >= 2
    assert all(torch.equal(r.vectors["change"], v) for r, v in zip(reports, vectors, strict=True))


def _plain(report: Report) -> tuple[int, int, int, Vectors, dict[str, float]]:
    return report.client, report.version, report.samples, report.vectors, {}


@pytest.mark.technique("bonawitz_two_level", check=1)
@pytest.mark.parametrize("rule", ["fedavg", "fednova", "scaffold", "fedopt"])
@pytest.mark.parametrize("edges", [1, 3, 12])
def test_a_run_with_aggregators_is_the_run_without(rule: str, edges: int) -> None:
    clients = Population(by_label(digits().labels.numpy()[:600], 12, 2))
    one, two = (
        simulate(digits(), clients, f"{rule}(clients=7, batch=50) / none / {structure}", 3, rate=0.1)
        for structure in ("server", f"hierarchy(edges={edges})")
    )
    torch.testing.assert_close(one.parameters, two.parameters, rtol=0, atol=1e-6)
    assert np.array_equal(one.up_bytes, two.up_bytes) and one.seconds == two.seconds


@pytest.mark.long
@pytest.mark.technique("bonawitz_two_level", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_selecting_more_than_wanted_makes_rounds_commit(seed: int) -> None:
    """10,000 devices of which a tenth of those selected vanish: all wanted reports before the time is over, or none."""
    devices = 10_000
    draw = np.random.default_rng(seed)
    clients = Population(
        among_quadratics([1] * devices).shards, sample_seconds=10 ** draw.uniform(-3, 0, devices), lost=0.1
    )
    task = Quadratics(torch.tensor(draw.normal(size=(devices, 3)), dtype=torch.float32))
    committed = {}
    for over in (1.3, 1.0):
        text = f"fedavg(clients=50, batch=0) / none / hierarchy(edges=5, over={over}, deadline=2.0, minimum=1.0)"
        outcome = simulate(task, clients, text, 40, rate=0.1, seed=seed)
        assert all(len(step.clients) == 50 for step in outcome.steps if step.committed)
        committed[over] = np.mean([step.committed for step in outcome.steps])
    assert committed[1.3] >= 0.95 and committed[1.0] <= 0.05


@pytest.mark.technique("bonawitz_two_level", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_aggregator_that_crashes_takes_its_own_reports_alone(seed: int) -> None:
    """Rounds of 20 clients at 5 aggregators commit with 12 reports, and lost clients keep nothing of the round."""
    trained: list[dict[int, Tensor]] = []

    @dataclass(frozen=True)
    class Recording(FedAvg):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            sent = super().train(local, received, memory)
            memory["rounds"] = memory.get("rounds", torch.zeros(1)) + 1
            trained[-1][local.client] = sent.vectors["change"]
            return sent

    draw = np.random.default_rng(seed)
    task = Quadratics(torch.tensor(draw.normal(size=(20, 6)), dtype=torch.float32))
    structure = Hierarchy(edges=5, crashes=0.3, minimum=0.6)
    strategy = FederatedStrategy(Recording(clients=20, batch=0), structure=structure)
    memory = InMemory()
    expected, kept = Trainer(task, seed).start.clone(), np.zeros(20)
    trained.append({})
    outcome = simulate(
        task,
        among_quadratics([1] * 20),
        strategy,
        30,
        rate=0.3,
        seed=seed,
        client_memory=memory,
        progress=lambda step: trained.append({}),
    )
    numbers = set()
    for number, step in enumerate(outcome.steps):
        groups = structure.edges_of(range(20), number, seed)
        alive = sorted(groups)
        assert sorted(step.lost) == [c for c in range(20) if c not in groups] and len(alive) % 4 == 0
        assert list(step.clients) == (alive if len(alive) >= 12 else [])
        for client in step.clients:
            expected += trained[number][client] / len(alive)
            kept[client] += 1
        numbers.add(len(alive))
    assert {8, 12, 16} <= numbers  # lost rounds, and committed ones with some crashed
    torch.testing.assert_close(outcome.parameters, expected, rtol=0, atol=1e-5)
    assert [float(memory.load(c).get("rule/rounds", torch.zeros(1))) for c in range(20)] == kept.tolist()


def test_a_rule_without_rounds_has_no_aggregators() -> None:
    with pytest.raises(StrategyError, match="write fedbuff / none / server"):
        FederatedStrategy.parse("fedbuff / none / hierarchy")
