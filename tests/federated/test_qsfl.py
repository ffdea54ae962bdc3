"""Clients that qualify, and segments of their models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.partition import by_label, iid
from laconic.federated.population import Population
from laconic.federated.rule import Report, Sent, Server
from laconic.federated.rules.qsfl import QSFL
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from tests.federated.digits import digits


@pytest.mark.technique("qsfl", check=1)
@pytest.mark.parametrize(("hidden", "each"), [(32, 161), (8, 41)])
def test_a_share_of_the_clients_uploads_a_share_of_a_segment(hidden: int, each: int) -> None:
    """round(0.4 ⌈2410/6⌉) and round(0.4 ⌈610/6⌉) entries, with places of 9 and 7 bits, by 7 of 10 clients."""
    outcome = simulate(digits(hidden), Population(iid(500, 10)), "qsfl(10, batch=50) / topk(0.4)", 4, rate=0.1)
    assert [len(step.clients) for step in outcome.steps] == [7] * 4
    entry = 4 * each + -(-(9 if hidden == 32 else 7) * each // 8)
    assert outcome.up_bytes.sum() == 28 * entry
    uploads = np.bincount([c for step in outcome.steps for c in step.clients], minlength=10)
    assert np.array_equal(outcome.up_bytes, uploads * entry)


def test_those_of_the_best_scores_qualify() -> None:
    def offer(client: int, relevance: float, loss: float) -> Report:
        return Report(client, 0, 5, {}, {"relevance": relevance, "loss": loss})

    server, offers = Server(torch.zeros(3)), [offer(0, 0.9, 1.0), offer(1, 0.5, 3.0), offer(2, 0.7, 2.0)]
    assert QSFL(qualified=0.34).admitted(server, offers) == [1, 2]  # shares of the loss are 1/6, 1/2 and 1/3
    assert QSFL(qualified=1 / 3).admitted(server, offers) == [1]
    assert QSFL(qualified=1 / 3, beta=0.0).admitted(server, offers) == [0]
    assert QSFL(qualified=2 / 3, beta=0.5).admitted(server, offers) == [0, 2]  # 0.533, 0.5, 0.517


def segments(rounds: int, segments: int) -> dict[int, list[torch.Tensor]]:
    """Return the places of the model that each client uploads, by rounds; all qualify, and nothing is learned."""
    found: dict[int, list[torch.Tensor]] = {client: [] for client in range(4)}

    @dataclass(frozen=True)
    class Watched(QSFL):
        def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
            sent, model = super().train(local, received, memory), received["parameters"]
            segment = sent.vectors["segment"]
            begin = int((model == segment[0]).nonzero()[0])
            assert torch.equal(segment[: 610 - begin], model[begin : begin + len(segment)])
            found[local.client].append(torch.arange(610)[begin : begin + len(segment)])
            return sent

    strategy = FederatedStrategy(Watched(4, batch=50, segments=segments, qualified=1.0))
    simulate(digits(8), Population(iid(100, 4)), strategy, rounds, rate=0.0)
    return found


@pytest.mark.technique("qsfl", check=2)
@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_segments_of_consecutive_rounds_are_the_model(count: int) -> None:
    for places in segments(count + 2, count).values():
        for first in range(3):
            joined = torch.cat(places[first : first + count])
            assert torch.equal(joined.sort().values, torch.arange(610))


@pytest.mark.technique("qsfl", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_with_one_segment_and_all_qualified_it_is_fedavg(seed: int) -> None:
    """Of clients with equally many samples, whose weights are equal."""
    clients = Population(iid(400, 5, seed))
    plain, cut = (
        simulate(digits(), clients, text, 4, rate=0.1, seed=seed)
        for text in ("fedavg(5, batch=20)", "qsfl(5, batch=20, segments=1, qualified=1)")
    )
    torch.testing.assert_close(plain.parameters, cut.parameters, rtol=0, atol=1e-6)
    assert np.array_equal(plain.up_bytes, cut.up_bytes)


def test_what_nobody_sends_stays_and_what_comes_counts_once() -> None:
    rule = QSFL(segments=2)
    server = Server(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), version=0)
    reports = [
        Report(client, 0, 5, {"segment": torch.tensor(sent)}, {})
        for client, sent in ((0, [7.0, 0.0, 0.0]), (2, [9.0, 0.0, 1.0]))
    ]
    assert rule.aggregate(server, reports).parameters.tolist() == [8.0, 2.0, 1.0, 4.0, 5.0]


def test_who_does_not_qualify_sends_nothing_and_the_round_waits_for_all_offers() -> None:
    """The slowest client decides when offers are complete; then uploads begin."""
    speeds = np.where(np.arange(10) == 3, 1.0, 1e-3)
    clients = Population(by_label(digits().labels.numpy()[:500], 10, 2), sample_seconds=speeds, up_bits=1e6)
    outcome = simulate(digits(), clients, "qsfl(10, batch=50)", 1, rate=0.1)
    (step,) = outcome.steps
    offered = 50 * 1.0 + 8 * 4 * 2410 / 1e7 + 8 * 16 / 1e6
    assert step.seconds == pytest.approx(offered + 8 * 4 * 402 / 1e6)
    assert (outcome.up_bytes > 0).sum() == 7 and not step.late
    lost = simulate(digits(), replace(clients, lost=0.5), "qsfl(10, batch=50)", 3, rate=0.1)
    for one in lost.steps:
        assert len(one.clients) == int(np.ceil(0.7 * (10 - len(one.lost)) - 1e-9)) > 0


@pytest.mark.long
@pytest.mark.technique("qsfl", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tenth_of_the_uplink_is_enough(seed: int) -> None:
    """With the paper's two savings and five epochs a round, against FedAvg with the same rounds: 7 of 10 clients send
    0.4 of a sixth, with places, and the accuracy is at most two points lower."""
    clients = Population(iid(1437, 10, seed))
    plain, cut = (
        simulate(digits(), clients, text, 50, rate=0.3, seed=seed, evaluate_every=10)
        for text in ("fedavg(10, epochs=5, batch=50)", "qsfl(10, epochs=5, batch=50) / topk(0.4)")
    )
    assert 10 * cut.up_bytes.sum() < plain.up_bytes.sum()
    assert plain.steps[-1].scores["accuracy"] > 0.95
    assert cut.steps[-1].scores["accuracy"] >= plain.steps[-1].scores["accuracy"] - 0.02
