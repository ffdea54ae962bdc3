"""Asynchronous gossip: pairs keep the sum, the slow delay nobody, and no order of events gets stuck."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import laconic
from laconic.errors import StrategyError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.sync.ad_psgd import Model, sides
from laconic.virtual.compute import Compute
from laconic.virtual.rpc import Fault, Faults
from laconic.worker import ActorMessage, Kind
from tests.sync.gossiping import DIMENSION, Point, classify, draws, sgd

UNEQUAL = Compute(forward_seconds=0.01, slowness=(1, 1.7, 0.6, 2.3))


def ends(
    strategy: str, workers: int, steps: int, rate: float, meetings: int = 1, **setting: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """From different starts, with so many steps before each time that all meet: N times what everybody holds after the
    last, and starts plus all updates made."""
    starts, goals = torch.from_numpy(draws(workers, DIMENSION)), torch.from_numpy(draws(workers, DIMENSION, seed=1))

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        rank, model = laconic.rank(), Point()
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=rate), strategy)
        model.x.data.copy_(starts[rank])
        moved = starts[rank].clone()
        for _ in range(meetings):
            for _ in range(steps):
                model(torch.ones(DIMENSION), goals[rank]).backward()
                moved -= rate * model.x.grad
                optimizer.step()
                optimizer.zero_grad()
            laconic.finish(model, optimizer)
        return model.x.detach() * workers, moved

    results = laconic.simulate(body, workers, **setting).results  # type: ignore[arg-type]
    assert all(torch.equal(results[0][0], held) for held, _ in results)
    return results[0][0], sum(moved for _, moved in results)


@pytest.mark.technique("ad_psgd", check=1)
@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("graph", ["ring", "torus", 'edges("0-1,1-2,2-3")'])
def test_only_gradient_steps_change_the_sum(graph: str, rate: float) -> None:
    network = Network.flat(4, 1e5, 1e-3)
    held, expected = ends(f"ad_psgd / {graph}", 4, 20, rate, network=network, compute=UNEQUAL)
    torch.testing.assert_close(held, expected, rtol=0, atol=1e-6)


@pytest.mark.technique("ad_psgd", check=1)
@pytest.mark.parametrize("begin_seconds", [0.06, 0.12, 0.15])
def test_the_sum_is_kept_when_training_goes_on_after_a_meeting(begin_seconds: float) -> None:
    """Even where a passive worker cannot reach the actor of its model for a while, such as just when it sends the mean
    of the meeting: others do not average with what the actor still holds."""
    setting = {"network": Network.flat(4, 1e5, 1e-3), "compute": UNEQUAL}
    faults = Faults((Fault(begin_seconds, 0.3, server=1, worker=1),))
    held, expected = ends("ad_psgd", 4, 3, 0.1, meetings=2, faults=faults, **setting)
    torch.testing.assert_close(held, expected, rtol=0, atol=1e-6)


@pytest.mark.technique("ad_psgd", check=1)
def test_an_averaging_is_one_event_for_both() -> None:
    model = Model([torch.tensor([1.0, 2.0])])
    (mean,) = model.write(3, ActorMessage("average", {}, (torch.tensor([3.0, -2.0]),))).tensors
    assert mean.tolist() == [2.0, 0.0] == model.read(0, ActorMessage("ask")).tensors[0].tolist()
    (stepped,) = model.write(0, ActorMessage("add", {}, (torch.tensor([1.0, 1.0]),))).tensors
    assert stepped.tolist() == [3.0, 1.0] and mean.tolist() == [2.0, 0.0]


@pytest.mark.long
@pytest.mark.technique("ad_psgd", check=2)
@pytest.mark.parametrize("slow", [0, 3])
def test_a_slow_worker_delays_nobody_whatever_its_side(slow: int) -> None:
    def body() -> float:
        model = Point()
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "ad_psgd")
        for _ in range(20):
            model(torch.ones(DIMENSION), torch.zeros(DIMENSION)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return connect().clock_seconds()

    def seconds(factor: float) -> list[float]:
        compute = Compute(forward_seconds=0.01, slowness=tuple(factor if rank == slow else 1 for rank in range(8)))
        return laconic.simulate(body, 8, Network.flat(8, 1e6, 1e-4), compute).results

    alike, with_one_slow = seconds(1), seconds(10)
    assert with_one_slow[slow] > 9 * alike[slow]
    for rank in set(range(8)) - {slow}:
        assert with_one_slow[rank] < alike[rank] / 0.9


@pytest.mark.technique("ad_psgd", check=3)
@pytest.mark.long
def test_a_ring_of_eight_is_as_accurate_as_bsp() -> None:
    def accuracy(strategy: str) -> float:
        compute = Compute(forward_seconds=0.01, slowness=(1.0, 1.3, 0.8, 1.1))
        runs = [classify(strategy, 8, 100, sgd(0.3), seed=k, finish=True, compute=compute) for k in range(3)]
        return sum(run[0].accuracy for run in runs) / 3

    assert accuracy("ad_psgd") >= accuracy("bsp") - 1.5


@pytest.mark.long
@pytest.mark.technique("ad_psgd", check=3)
@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_events_gets_stuck(seed: int) -> None:
    """20 times 50 steps of each worker, each step of a length of its own: 1000 random orders of what happens."""
    draw = np.random.default_rng(seed)
    lengths = tuple(map(tuple, 10.0 ** draw.uniform(-2, 2, (50, 4))))
    compute = Compute(forward_seconds=0.01, trace=lengths)
    held, expected = ends("ad_psgd", 4, 50, 0.05, network=Network.flat(4, 1e5, 1e-3), compute=compute)
    torch.testing.assert_close(held, expected, rtol=0, atol=1e-6)


def test_an_event_sends_a_model_each_way() -> None:
    def body() -> tuple[float, float]:
        model = Point()
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "ad_psgd")
        ledger = connect().ledger
        before = ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)
        for _ in range(10):
            model(torch.ones(DIMENSION), torch.zeros(DIMENSION)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return ledger.sent_bytes(Kind.PAYLOAD) - before[0], ledger.received_bytes(Kind.PAYLOAD) - before[1]

    sent, received = laconic.simulate(body, 2).results[0]
    assert sent == 10 * 8 * DIMENSION and received == 9 * 8 * DIMENSION  # the last is under way


def test_a_graph_without_two_sides_is_refused() -> None:
    assert sides([(0, 1), (1, 2), (2, 3), (3, 0)], 4) == [0, 1, 0, 1]
    with pytest.raises(StrategyError, match="a ring of an even number of workers"):
        ends("ad_psgd", 3, 1, 0.1)
    with pytest.raises(StrategyError, match="ad_psgd needs the compression none"):
        ends("ad_psgd / bf16", 4, 1, 0.1)
