"""Elastic rounds inside a training on virtual workers, over the virtual engine's rpc: the same actors, other clocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import laconic
from laconic.architecture.elastic.client import ElasticClient
from laconic.architecture.elastic.exchange import ByParts, CodedRing, MakeExchange
from laconic.architecture.elastic.member import Member
from laconic.architecture.elastic.moshpit import moshpit
from laconic.compression.bucket_means import BucketMeans
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from laconic.virtual.compute import Compute
from laconic.virtual.membership import Event
from laconic.worker import Home

COMPUTE = Compute(step_seconds=0.25)
PERIOD = 4


def local_sgd(size: int, dims: int, count: int, make: MakeExchange = ByParts) -> Callable[[], Tensor]:
    """Return what a worker runs: local gradient descent on |x - rank|² in every coordinate, and as
    many rounds of averaging as the grid has dimensions after every few steps."""

    def run() -> Tensor:
        worker = connect()
        worker.host("matchmaker", Home(0), lambda: moshpit(range(size), dims))
        address = f"member-{worker.rank}"
        for rank in range(size):
            worker.host(f"member-{rank}", Home(rank, on="worker"), lambda rank=rank: _member(rank, make))  # type: ignore[misc]
        client = ElasticClient(worker.call, address, "matchmaker")
        x = torch.zeros(10)
        for _ in range(count):
            for _ in range(PERIOD):
                x = x - 0.1 * (x - worker.rank)
                worker.computed("step")
            for _ in range(dims):
                exchange = InFlight(client.average(x))
                complete([exchange])
                x = exchange.result.mean
        complete([InFlight(client.leave())])
        return x

    return run


def _member(rank: int, make: MakeExchange) -> Member:
    return Member(f"member-{rank}", "matchmaker", make)


@pytest.mark.parametrize(("size", "dims"), [(4, 1), (4, 2), (9, 2)])
def test_local_sgd_ends_at_the_mean_of_all_optima(size: int, dims: int) -> None:
    out = laconic.simulate(local_sgd(size, dims, 16), size, Network.flat(size, 1e9), COMPUTE, servers=1)
    for result in out.results:
        torch.testing.assert_close(result, torch.full((10,), (size - 1) / 2), atol=0.02, rtol=0)


@pytest.mark.parametrize("make", [ByParts, CodedRing.around(BucketMeans())])
@pytest.mark.parametrize("moment", [0.0, 7.6, 8.0, 8.0001])
def test_training_goes_on_without_a_worker_that_dies(make: MakeExchange, moment: float) -> None:
    """Before the first step, while others wait for it, in a round and between two: the others end with the same bits,
    at the mean of their own optima."""
    run = local_sgd(4, 1, 24, make)
    events = [Event(moment, 3, "die")]
    network = Network.flat(4, 1e7)
    out = laconic.simulate(run, 4, network, COMPUTE, servers=1, events=events, heartbeat_seconds=3.0)
    assert out.results[3] is None
    assert all(torch.equal(result, out.results[0]) for result in out.results[:3])
    torch.testing.assert_close(out.results[0], torch.full((10,), 1.0), atol=0.02, rtol=0)
    assert 24 <= out.seconds < 32
