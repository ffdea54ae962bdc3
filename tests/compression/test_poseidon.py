"""Poseidon at work: each layer by the cheaper way, with the bytes of its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.compression.sufficient_factors import SufficientFactors, factor_values, served_values
from laconic.real.connect import connect
from laconic.virtual.simulate import Simulated
from laconic.worker import Kind
from tests.real.test_against_ddp import batch
from tests.sync import digits


def layer(strategy: str, workers: int, m: int, n: int, k: int, steps: int = 2) -> Simulated:
    """One linear layer: what each worker sends and receives in its last step."""

    def body() -> float:
        torch.manual_seed(0)
        model: Any = nn.Linear(n, m, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
        draw, ledger = torch.Generator().manual_seed(laconic.rank()), connect().ledger
        for _ in range(steps):
            before = ledger.sent_bytes(Kind.PAYLOAD) + ledger.received_bytes(Kind.PAYLOAD)
            model(torch.randn(k, n, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return ledger.sent_bytes(Kind.PAYLOAD) + ledger.received_bytes(Kind.PAYLOAD) - before

    return laconic.simulate(body, workers)


@pytest.mark.technique("poseidon", check=2)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(("m", "n"), [(8, 8), (64, 32), (16, 128)])
@pytest.mark.parametrize("k", [1, 8, 40])
def test_bytes_on_the_wire_are_the_smaller_formula(m: int, n: int, k: int, workers: int) -> None:
    """A server with every worker: P2 = P1."""
    factors, served = factor_values(m, n, k, workers), served_values(m, n, workers, workers)
    sentence = f"bsp / sufficient_factors(batch={k}) / allreduce(order=rank) / wfbp(bucket_bytes=0)"
    for moved in layer(sentence, workers, m, n, k).results:
        assert moved == 4 * min(factors, served)


@pytest.mark.technique("poseidon", check=2)
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (4, 1), (4, 2), (3, 3)])
def test_bytes_of_servers_are_their_formula(workers: int, servers: int) -> None:
    """On the first server's machine, which is a worker's too: what crosses its link in a step."""
    m, n = 24, 36
    sentence = f"bsp / sufficient_factors(batch=1000, servers={servers}) / ps(shards={servers})"

    def crossing(steps: int) -> int:
        rpc = layer(sentence, workers, m, n, 2, steps).rpc
        assert rpc is not None
        return sum(trip.nbytes for trip in rpc.deliveries if (trip.source == 0) != (trip.to == 0))

    flags = 2 * 4 * (workers - 1)  # one of each other worker to the first shard, and the answer
    assert crossing(3) - crossing(2) == 4 * served_values(m, n, workers, servers) + flags


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(48, 96), nn.ReLU(),
        nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5),
    )  # fmt: skip


def trained(strategy: str, steps: int) -> Tensor:
    def body() -> Tensor:
        model: Any = network()
        user = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, user, strategy)
        for step in range(steps):
            x, y = batch(laconic.rank(), step)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    results = laconic.simulate(body, 4).results
    assert all(torch.equal(result, results[0]) for result in results), "replicas stay equal"
    end: Tensor = results[0]
    return end


POSEIDON = "bsp / sufficient_factors(batch=8) / allreduce(order=rank) / wfbp(bucket_bytes=0)"
HYBRID = '{"*.weight": bsp / sufficient_factors(batch=8, servers=2) / allreduce, else: bsp / none / ps(shards=2)}'


@pytest.mark.long
@pytest.mark.technique("poseidon", check=3)
@pytest.mark.parametrize("strategy", [POSEIDON, HYBRID, "poseidon"])
@pytest.mark.parametrize("steps", [1, 10])
def test_hybrid_steps_are_those_of_a_synchronous_server(strategy: str, steps: int) -> None:
    made = SufficientFactors(batch=8)
    assert made.pays((96, 96), 4) and not made.pays((5, 96), 4), "one layer goes each way"
    torch.testing.assert_close(
        trained(strategy, steps), trained("bsp / none / ps(shards=4)", steps), rtol=1e-5, atol=1e-6
    )


def test_gradients_that_are_added_up_go_as_all_their_pairs() -> None:
    def body(strategy: str) -> Tensor:
        model: Any = network()
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
        for step in range(3):
            with model.no_sync():
                nn.functional.cross_entropy(model(batch(laconic.rank(), 2 * step)[0]), torch.arange(8) % 5).backward()
            nn.functional.cross_entropy(model(batch(laconic.rank(), 2 * step + 1)[0]), torch.arange(8) % 5).backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    mine, plain = (laconic.simulate(lambda s=s: body(s), 2).results[0] for s in (POSEIDON, "bsp"))
    torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_script_that_logs_its_loss_has_a_ratio_by_progress() -> None:
    """The other thing that a compressor may ask: what was logged."""
    text = "flat+topk(0.01)+iteration_ratio(progress, steps=5)+ef / sequential"
    end = digits.trained(text, 60, 16, digits.sgd(0.3), workers=2)
    least = digits.trained("flat+topk(0.01)+ef / sequential", 60, 16, digits.sgd(0.3), workers=2)
    assert end.sent_bytes > least.sent_bytes + 60 * 4, "more was sent as progress slowed"
