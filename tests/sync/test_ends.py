"""Workers with different numbers of steps: who has made its own is not waited for by those who still step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.architecture.server.actor import ServerRule, Shard
from laconic.architecture.server.sharding import even
from laconic.architecture.server.store import Store
from laconic.compression.none import Identity
from laconic.network.network_tree import Network
from laconic.sync.ssp import SSP
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute, Stragglers
from laconic.worker import ActorMessage
from tests.sync.racing import race

STEPS = (12, 20, 16, 40)


def shard(rule: ServerRule, workers: int) -> Shard:
    model = nn.Linear(2, 1, bias=False)
    specs = [TensorSpec("w", (1, 2), torch.float32)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    store = Store(even(specs, 1), specs, list(model.parameters()), optimizer, workers)
    made = Shard(store, rule, Identity(), lambda *_: None, "digest")  # type: ignore[arg-type,return-value]
    made.write(0, ActorMessage("plant", {}, (torch.zeros(2),)))
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    "sentence", ["ssp(0)", "ssp(3)", "asp(delay=2)", "r2p", "hsp", "gssp", "a2s", "ashl(switch=0)"]
)
def test_workers_may_end_at_different_steps(sentence: str) -> None:
    def body() -> torch.Tensor:
        torch.manual_seed(0)
        model: Any = nn.Linear(8, 3)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, f"{sentence} / none / ps(shards=2)")
        for _ in range(STEPS[laconic.rank()]):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        laconic.finish(model, optimizer)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    out = laconic.simulate(body, len(STEPS), Network.flat(len(STEPS), 1e8, 1e-4), Compute(0.01, 0.02, 0.001), 0)
    if sentence != "gssp":  # whose groups each have a server
        assert all(torch.equal(values, out.results[0]) for values in out.results)


@pytest.mark.parametrize("sentence", ["asp", "ssp(3)"])
def test_all_end_with_the_servers_model_and_the_mean_of_the_buffers(sentence: str) -> None:
    def body() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        model: Any = nn.BatchNorm1d(3)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, f"{sentence} / none / ps")
        for step in range(3 + laconic.rank()):
            draw = torch.Generator().manual_seed(10 * laconic.rank() + step)
            model(torch.randn(4, 3, generator=draw) + laconic.rank()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        own = model.running_mean.clone()
        laconic.finish(model, optimizer)
        return own, model.running_mean.clone(), model.weight.detach().clone()

    compute = Compute(0.01, 0.02, 0.001, slowness=(1.0, 3.0, 2.0))
    results = laconic.simulate(body, 3, Network.flat(3, 1e8, 1e-4), compute, 0).results
    own = torch.stack([result[0] for result in results])
    assert own.std(dim=0).min() > 0.01, "until then each has its own"
    for _, buffers, weights in results:
        torch.testing.assert_close(buffers, own.mean(dim=0))
        assert torch.equal(weights, results[0][2])


def test_who_pushes_again_after_its_end_is_as_far_as_the_others() -> None:
    one = shard(SSP(1), 2)
    for _ in range(5):
        one.write(0, ActorMessage("push", {}, (torch.ones(2),)))
    assert one.read(0, ActorMessage("pull")) is None, "worker 1 is five behind"
    one.write(1, ActorMessage("rest"))
    assert one.read(0, ActorMessage("pull")) is not None
    one.write(1, ActorMessage("push", {}, (torch.ones(2),)))
    assert one.read(0, ActorMessage("pull")) is not None and one.store.clocks == {0: 5, 1: 6}


def test_a_worker_that_one_shard_lost_has_one_clock_everywhere() -> None:
    """Otherwise two workers could each wait for the other, at different shards."""
    one = shard(SSP(1), 2)
    one.lose(1)
    for _ in range(5):
        one.write(0, ActorMessage("push", {}, (torch.ones(2),)))
    one.write(1, ActorMessage("push", {"clock": 9}, (torch.ones(2),)))
    assert one.store.clocks[1] == 9


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a2s_on_many_shards_goes_through_when_anybody_may_be_slow(seed: int) -> None:
    run = race("a2s / none / ps(shards=4)", 5, 150, straggling=Stragglers(0.3, 3.0), seed=seed)
    assert len(run.gradients) >= 150
