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
from laconic.real.connect import connect
from laconic.sync.ssp import SSP
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute, Stragglers
from laconic.worker import ActorMessage, Kind
from tests.sync import rounds
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


@pytest.mark.parametrize("sentence", ["asp", "ssp(3)", "ps_plus", "easgd(2)"])
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


@pytest.mark.parametrize("sentence", ["ssp(0)", "asp(delay=1)", "hsp", "r2p"])
def test_nobody_waits_for_a_worker_that_has_ended(sentence: str) -> None:
    """The first has made its steps long before the others, which the rule lets no further ahead of it than one."""

    def body() -> tuple[int, torch.Tensor]:
        run = rounds.train(sentence, 2 + 2 * laconic.rank())
        laconic.finish(run.model, run.optimizer)
        return len(run.path), rounds.flat(run.model.parameters())

    results = laconic.simulate(body, 3, compute=Compute(0.01, 0.02, 0.001, slowness=(1.0, 2.0, 1.5))).results
    assert [steps for steps, _ in results] == [2, 4, 6]
    assert all(torch.equal(values, results[0][1]) for _, values in results)


def test_the_end_sends_one_number_and_reads_the_model() -> None:
    def body() -> tuple[float, float, int]:
        run, ledger = rounds.train("asp", 2), connect().ledger
        sent, received = ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)
        laconic.finish(run.model, run.optimizer)
        model_bytes = sum(p.nbytes for p in run.model.parameters())
        return ledger.sent_bytes(Kind.PAYLOAD) - sent, ledger.received_bytes(Kind.PAYLOAD) - received, model_bytes

    for sent, received, model_bytes in laconic.simulate(body, 3).results:
        assert (sent, received) == (4, 4 + model_bytes)


def normed(sentence: str, steps: int, ending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's parameters and buffers before and after its last step, or with `ending` before and after the end."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = laconic.distribute(model, optimizer, sentence)
    held = []

    def look() -> None:
        floats = [x.detach().reshape(-1) for x in model.state_dict().values() if x.is_floating_point()]
        held.append(torch.cat(floats).clone())

    for step in range(steps):
        draw = torch.Generator().manual_seed(10 * laconic.rank() + step)
        x, y = (torch.randn(4, 3, generator=draw) + laconic.rank() for _ in range(2))
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        look()
    if ending:
        laconic.finish(model, optimizer)
        look()
    return held[-2], held[-1]


REPLICAS = ["local(8)", "adacomm(8)", "dpsgd", "d2", "choco_sgd", "detsgrad", "sgp"]
REPLICAS += ["difference_averaging / randk(0.3)", "difference_averaging(true) / randk(0.3)"]


@pytest.mark.parametrize("sentence", REPLICAS)
def test_replicas_end_as_their_mean(sentence: str) -> None:
    """Parameters and buffers, whatever is in flight."""
    results = laconic.simulate(lambda: normed(sentence, 3, ending=True), 4).results
    own = torch.stack([before for before, _ in results])
    assert own.std(dim=0).max() > 0.01, "until then each has its own"
    for _, after in results:
        torch.testing.assert_close(after, own.mean(dim=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sentence", ["local(8)", "adacomm(8)", "dpsgd", "sgp", "difference_averaging / randk(0.3)"])
def test_a_phase_of_replicas_ends_as_their_mean(sentence: str) -> None:
    """With its last step, so that a rule whose workers hold one model can go on."""
    results = laconic.simulate(lambda: normed(f"{sentence} until step 3, then bsp", 3, ending=False), 4).results
    learnt = slice(0, 18)  # the parameters
    assert torch.stack([before[learnt] for before, _ in results]).std(dim=0).max() > 0.01
    assert all(torch.equal(after[learnt], results[0][1][learnt]) for _, after in results)


OVERLAPPING = ["dpsgd", "sgp(2)", "difference_averaging(true)", "overlap_local_sgd(2)", "osp(share=1)"]
OVERLAPPING += ["streaming_diloco(period=4, fragments=1, overlap=3)", "ps_plus", "ps_plus(pull=at_once)"]


@pytest.mark.parametrize("sentence", OVERLAPPING)
def test_an_end_leaves_nothing_in_flight(sentence: str) -> None:
    """A message that the end did not wait for would be taken for one of the steps that follow it."""

    def body() -> tuple[int, int]:
        run = rounds.train(sentence, 4)
        (tier,) = run.optimizer.session.partitions[0].tiers
        before = len(tier.in_flight)
        laconic.finish(run.model, run.optimizer)
        return before, len(tier.in_flight)

    for before, after in laconic.simulate(body, 2, compute=Compute(0.01, 0.02, 0.001, slowness=(1.0, 1.5))).results:
        assert before and not after


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
