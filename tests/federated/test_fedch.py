"""Clusters with rounds of their own, merged as they come."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
import torch

from laconic.errors import StrategyError
from laconic.federated.local import Trainer, Work
from laconic.federated.partition import by_label, iid
from laconic.federated.population import Population
from laconic.federated.rules.fedch import FedCH
from laconic.federated.simulate import simulate
from tests.federated.digits import digits


def uneven(clients: int, seed: int, samples: int = 1437) -> Population:
    """Return clients whose speeds are spread from one to ten, and their links a little."""
    draw = np.random.default_rng(seed)
    return Population(
        iid(samples, clients, seed),
        sample_seconds=10 ** draw.uniform(-2, -1, clients),
        up_bits=10 ** draw.uniform(6, 6.3, clients),
        down_bits=10 ** draw.uniform(7, 7.3, clients),
    )


@pytest.mark.technique("fedch", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_cluster_is_fedavg_of_all_clients(seed: int) -> None:
    clients = Population(by_label(digits().labels.numpy()[:500], 6, 2, seed))
    plain, one = (
        simulate(digits(), clients, text, 4, rate=0.1, seed=seed)
        for text in ("fedavg(6, batch=50)", "fedch(batch=50, clusters=1)")
    )
    torch.testing.assert_close(plain.parameters, one.parameters, rtol=0, atol=1e-6)
    relayed = 2 * 8 * 4 * 2410 / 1e7  # the head's own way to the server and back
    assert [step.seconds for step in one.steps] == pytest.approx(
        [step.seconds + relayed * number for number, step in enumerate(plain.steps, 1)]
    )


@pytest.mark.technique("fedch", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_as_many_clusters_as_clients_merge_single_models_as_they_come(seed: int) -> None:
    """Followed by hand: times, versions, and shares 0.8/√(1 + s)."""
    clients = uneven(5, seed, 300)
    outcome = simulate(digits(), clients, "fedch(batch=20, clusters=5, mixing=0.8)", 12, rate=0.1, seed=seed)
    trainer, size = Trainer(digits(), seed), 4 * 2410
    model, order = trainer.start.clone(), FedCH(clusters=5).clusters_of(clients, size)
    place = {cluster.clients[0]: number for number, cluster in enumerate(order)}

    def ends(client: int, now: float) -> float:
        both = clients.send_seconds(client, size, down=True) + clients.send_seconds(client, size, down=False)
        return now + 2 * both + clients.train_seconds(client, len(clients.shards[client]))

    working = [(ends(client, 0.0), place[client], client, 0, model) for client in range(5)]
    heapq.heapify(working)
    for version, step in enumerate(outcome.steps):
        now, _, client, began, start = heapq.heappop(working)
        draw = np.random.default_rng([seed, 0xC11E, began, client])
        end = start.clone()
        for batch in Work(1, 20, 0.1).batches(clients.shards[client], draw):
            end = end - 0.1 * trainer.gradient(end, batch)[0]
        model = model + 0.8 * (1 + version - began) ** -0.5 * (end - model)
        assert step.clients == (client,) and step.staleness == (version - began,)
        assert step.seconds == pytest.approx(now)
        heapq.heappush(working, (ends(client, now), place[client], client, version + 1, model))
    torch.testing.assert_close(outcome.parameters, model, rtol=0, atol=1e-5)
    assert max(step.staleness[0] for step in outcome.steps) >= 3


def waiting(seconds: np.ndarray, groups: list[tuple[int, ...]]) -> float:
    """Return how long a client waits in a round of its cluster, on average."""
    return float(np.mean([seconds[list(group)].max() - seconds[c] for group in groups for c in group]))


@pytest.mark.technique("fedch", check=2)
@pytest.mark.parametrize("clusters", [2, 5, 7])
@pytest.mark.parametrize("seed", range(3))
def test_clients_wait_less_than_in_random_clusters(seed: int, clusters: int) -> None:
    clients, size = uneven(40, seed), 4 * 2410
    seconds = np.array(
        [
            clients.train_seconds(c, len(clients.shards[c]))
            + clients.send_seconds(c, size, down=True)
            + clients.send_seconds(c, size, down=False)
            for c in range(40)
        ]
    )
    made = FedCH(clusters=clusters).clusters_of(clients, size)
    assert sorted(c for cluster in made for c in cluster.clients) == list(range(40))
    for cluster in made:
        links = np.asarray(clients.up_bits)[list(cluster.clients)]
        assert np.asarray(clients.up_bits)[cluster.head] == links.max()
    own = waiting(seconds, [cluster.clients for cluster in made])
    draw, cuts = np.random.default_rng(seed), np.cumsum([len(cluster.clients) for cluster in made])[:-1]
    for _ in range(20):
        shuffled = [tuple(group) for group in np.split(draw.permutation(40), cuts)]
        assert own < 0.7 * waiting(seconds, shuffled)


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(StrategyError, match=r"write fedch\(clusters=3\)"):
        simulate(digits(), Population(iid(30, 3)), "fedch(clusters=4)", 1, rate=0.1)


@pytest.mark.long
@pytest.mark.technique("fedch", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_reach_an_accuracy_sooner_and_with_fewer_models_at_the_server(seed: int) -> None:
    """40 clients in 5 clusters of 8, each rule with the better of the same rates. With FedAvg every client's model
    reaches the server, with clusters one for each step."""
    clients = uneven(40, seed)
    found = {}
    for text, steps, models in (("fedavg(40)", 20, 40), ("fedch(clusters=5)", 160, 1)):
        each = []
        for rate in (0.3, 1.0):
            outcome = simulate(digits(), clients, text, steps, rate=rate, seed=seed, evaluate_every=1)
            reached = outcome.first("accuracy", 0.9)
            if reached is not None:
                each.append((reached.seconds, models * (outcome.steps.index(reached) + 1)))
        found[text] = min(each)
    (slow, many), (fast, few) = found.values()
    assert slow > 1.4 * fast and many > 0.7 * 8 * few
