"""FC2: within the budget, the most bandwidth for the server, and near the cheapest cluster after few probes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from laconic.cluster.cost.fc2 import recommend
from laconic.cluster.cost.instances import InstanceType
from laconic.errors import ClusterError


@dataclass
class Training:
    """A job with one parameter server: workers share a batch of 256 samples, and their messages meet at the server."""

    flops_per_sample: float
    parameter_bytes: float
    probed: list[tuple[str, int]] = field(default_factory=list)

    def throughput(self, server: InstanceType, worker: InstanceType, workers: int) -> float:
        compute = 256 * self.flops_per_sample / worker.flops / workers
        transfer = 2 * self.parameter_bytes * max(workers / server.bytes_per_second, 1 / worker.bytes_per_second)
        return 256 / (compute + 0.2 * transfer if compute > transfer else transfer + 0.2 * compute)

    def probe(self, server: InstanceType, worker: InstanceType, workers: int) -> float:
        self.probed.append((worker.name, workers))
        return self.throughput(server, worker, workers)


def catalogue(draws: np.random.Generator) -> list[InstanceType]:
    """Twelve kinds: larger ones cost in proportion, some a little more or less for what they do."""
    found = []
    for i, price in enumerate(np.geomspace(0.1, 6.0, 12).tolist()):
        flops = 2e11 * price * float(draws.uniform(0.8, 1.2))
        found.append(InstanceType(f"kind{i}", price, flops, 1.25e8 * float(price**0.5 * draws.uniform(0.8, 1.2)) * 4))
    return found


def job(draws: np.random.Generator) -> Training:
    return Training(float(10 ** draws.uniform(8.5, 10.3)), float(10 ** draws.uniform(6.6, 7.2)))


@pytest.mark.technique("fc2", check=1)
@pytest.mark.parametrize("seed", range(8))
def test_the_budget_is_kept_and_no_affordable_server_has_more_bandwidth(seed: int) -> None:
    draws = np.random.default_rng(seed)
    kinds, training = catalogue(draws), job(draws)
    for budget in (0.25, 1.0, 7.0, 60.0):
        found = recommend(kinds, budget, training.probe)
        assert found.price_per_hour <= budget + 1e-9
        assert found.price_per_hour == pytest.approx(
            found.server.price_per_hour + found.workers * found.worker.price_per_hour
        )
        cheapest = min(kind.price_per_hour for kind in kinds)
        affordable = [kind for kind in kinds if kind.price_per_hour + cheapest <= budget]
        assert found.server.bytes_per_second == max(kind.bytes_per_second for kind in affordable)
    with pytest.raises(ClusterError, match="pays no server"):
        recommend(kinds, 0.15, training.probe)


@pytest.mark.technique("fc2", check=2)
@pytest.mark.parametrize("seed", range(12))
def test_few_probes_find_nearly_the_cheapest_cluster_and_half_the_cost_of_the_dearest(seed: int) -> None:
    draws = np.random.default_rng(seed)
    kinds, training, budget = catalogue(draws), job(draws), 60.0
    found = recommend(kinds, budget, training.probe)
    assert len(training.probed) == found.probes <= 10

    def cost(worker: InstanceType, workers: int) -> tuple[float, float, float]:
        """The price of a sample, the time that it takes, and the price of an hour."""
        price = found.server.price_per_hour + workers * worker.price_per_hour
        speed = training.throughput(found.server, worker, workers)
        return price / speed, 1 / speed, price

    every = [
        cost(kind, workers)
        for kind in kinds
        for workers in range(1, int((budget - found.server.price_per_hour) / kind.price_per_hour) + 1)
    ]
    mine = cost(found.worker, found.workers)
    assert mine[0] <= 1.25 * min(every)[0]
    dearest = max(every, key=lambda one: one[2])
    assert mine[0] <= 0.5 * dearest[0] and mine[1] <= 1.1 * dearest[1]
