"""Elastic averaging: what an exchange conserves, how it mixes, what it sends, and how good the centre gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from laconic.virtual.rpc import Fault, Faults
from laconic.worker import Kind
from tests.sync import digits, rounds

SLOW = Compute(forward_seconds=0.01, slowness=(1, 2.5, 1, 1.3))


class Vector(nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(values.clone())

    def forward(self) -> torch.Tensor:
        return 0 * self.x.sum()


def exchange(
    strategy: str, workers: int, starts: torch.Tensor, steps: int = 1, **setting: Any
) -> list[tuple[torch.Tensor, ...]]:
    """Exchanges alone, without gradients, from these rows (the centre's is the last): by worker, its x and the centre
    as it was when all had ended."""

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        model = Vector(starts[-1])
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), strategy)
        with torch.no_grad():
            model.x.copy_(starts[laconic.rank()])
        for _ in range(steps):
            model().backward()
            optimizer.step()
        mine = model.x.detach().clone()
        laconic.finish(model, optimizer)
        return mine, model.x.detach().clone()

    return laconic.simulate(body, workers, Network.flat(workers, 1e6), SLOW, **setting).results


@pytest.mark.technique("easgd", check=1)
@pytest.mark.parametrize("strategy", ["easgd(1)", "easgd(1, synchronous=true)", "easgd(1, beta=1.7)"])
def test_an_exchange_conserves_the_sum(strategy: str) -> None:
    starts = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for steps in (1, 7):
        ends = exchange(strategy, 4, starts, steps)
        total = sum(x for x, _ in ends) + ends[0][1]
        torch.testing.assert_close(total, starts.sum(dim=0), rtol=0, atol=1e-13)
        assert not torch.allclose(ends[0][1], starts[-1])


@pytest.mark.parametrize("begin_seconds", [0.22, 0.33, 0.38])
def test_the_end_counts_an_exchange_that_one_server_receives_late(begin_seconds: float) -> None:
    """A worker cannot reach the second of two servers for a while, during its push (from 0.32 to 0.39 s) or before. A
    server has all that a worker sent before its part of the meeting."""
    starts = torch.randn(3, 2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    faults = Faults((Fault(begin_seconds, 5.0, server=1, worker=0),))
    ends = exchange("easgd(1) / none / ps(shards=2)", 2, starts, faults=faults)
    for _, centre in ends:
        torch.testing.assert_close(sum(mine for mine, _ in ends) + centre, starts.sum(dim=0), rtol=0, atol=1e-12)


def modulus(alpha: float, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """What one synchronous exchange does to unit vectors is its matrix; its eigenvalues, from the largest down."""
    ends = exchange(f"easgd(1, beta={alpha * workers!r}, synchronous=true)", workers, torch.eye(workers + 1).double())
    matrix = torch.stack([*(x for x, _ in ends), ends[0][1]]).numpy()
    return matrix, np.sort(np.linalg.eigvals(matrix).real)[::-1]


@pytest.mark.technique("easgd", check=2)
@pytest.mark.parametrize("workers", [3, 4])
def test_the_mixing_matrix_has_the_eigenvalues_it_should(workers: int) -> None:
    best = 2 / (workers + 2)
    second = {}
    for alpha in (0.1, 0.9 * best, best, 1.1 * best):
        matrix, eigenvalues = modulus(alpha, workers)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        expected = sorted([1.0, *(workers - 1) * [1 - alpha], 1 - (workers + 1) * alpha], reverse=True)
        np.testing.assert_allclose(eigenvalues, expected, atol=1e-7)
        second[alpha] = np.sort(np.abs(eigenvalues))[-2]
    assert min(second, key=lambda alpha: second[alpha]) == best
    assert second[best] == pytest.approx(workers / (workers + 2))


@pytest.mark.technique("easgd", check=3)
def test_bytes_are_two_models_per_period() -> None:
    def body() -> tuple[float, float, int]:
        ledger = connect().ledger
        run = rounds.train("easgd(16)", 1)
        before = ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)
        for step in range(1, 33):  # exchanges with the 16th and the 32nd of these
            rounds.loss(run.model, laconic.rank(), step).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        sent, received = ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)
        return sent - before[0], received - before[1], sum(p.nbytes for p in run.model.parameters())

    for sent, received, model_bytes in laconic.simulate(body, 3).results:
        assert sent == received == 2 * model_bytes


@pytest.mark.technique("easgd", check=3)
@pytest.mark.long
def test_the_centre_gets_as_good_as_bsp() -> None:
    def accuracy(strategy: str) -> float:
        return sum(digits.trained(strategy, 400, 16, digits.sgd(0.1, 0.9), seed=k).accuracy for k in range(3)) / 3

    assert accuracy("easgd(16)") >= accuracy("bsp") - 1


def by_hand(steps: int, period: int, workers: int) -> Iterator[torch.Tensor]:
    """The synchronous form in plain torch, one worker after the other, with Nesterov's momentum."""
    replicas = [rounds.net() for _ in range(workers)]
    optimizers = [torch.optim.SGD(r.parameters(), lr=0.02, momentum=0.9, nesterov=True) for r in replicas]
    centre = [p.detach().clone() for p in replicas[0].parameters()]
    for step in range(steps):
        moves = [torch.zeros_like(c) for c in centre]
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            optimizer.zero_grad()
            rounds.loss(replica, rank, step).backward()
            if step % period == 0:
                with torch.no_grad():
                    for p, c, move in zip(replica.parameters(), centre, moves, strict=True):
                        d = 0.9 / workers * (p - c)
                        move += d
                        p -= d
            optimizer.step()
        centre = [c + move for c, move in zip(centre, moves, strict=True)]
    return (rounds.flat(replica.parameters()) for replica in replicas)


def test_the_synchronous_form_is_what_one_writes_by_hand() -> None:
    def nesterov(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True)  # type: ignore[arg-type]

    runs = rounds.simulated("easgd(3, synchronous=true)", 11, nesterov, workers=3, compute=SLOW)
    rounds.assert_same(runs, list(by_hand(11, 3, 3)))


@pytest.mark.long
def test_nobody_waits_for_a_slow_worker() -> None:
    def body() -> float:
        rounds.train("easgd(2)", 20)
        return connect().clock_seconds()

    *quick, slow = laconic.simulate(body, 4, compute=Compute(forward_seconds=0.01, slowness=(1, 1, 1, 10))).results
    assert max(quick) == pytest.approx(0.2) and slow == pytest.approx(2.0)


@pytest.mark.parametrize("synchronous", ["true", "false"])
def test_all_workers_leave_with_the_same_centre_though_a_push_takes_long(synchronous: str) -> None:
    """The last push of a worker behind a slow link is part of the model that everybody takes over."""

    def body() -> torch.Tensor:
        model: nn.Module = Vector(torch.zeros(2500))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer = laconic.distribute(model, optimizer, f"easgd(period=1, synchronous={synchronous})")
        with torch.no_grad():
            model.x.fill_(1.0 + laconic.rank())
        model().backward()
        optimizer.step()
        laconic.finish(model, optimizer)
        return model.x.detach().clone()

    network = Network.flat(4, [1e6, 1e9, 1e9, 1e9], 1e-3)
    first, *others = laconic.simulate(body, 3, network, servers=1).results
    assert first[0] != 0 and all(torch.equal(first, other) for other in others)
