"""The parameter server's consistencies from one rule, how shards divide a model, and what messages do not hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.architecture.server.sharding import BLOCK, Range, even, hashed
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute
from laconic.virtual.worker import VirtualWorker
from laconic.worker import ActorMessage
from tests.sync import rounds, serving
from tests.sync.test_ssp import apart

ONE_SECOND = {"forward_seconds": 0.4, "backward_seconds": 0.5, "step_seconds": 0.1}


@pytest.mark.long
@pytest.mark.technique("parameter_server", check=1)
@pytest.mark.parametrize("make", [rounds.sgd, rounds.adamw])
def test_sequential_is_bsp_to_the_bit(make: rounds.Make) -> None:
    served, together = (rounds.simulated(f"bsp / none / {how}", 10, make) for how in ("ps(2)", "allreduce(rank)"))
    assert all(torch.equal(a.path[-1], b.path[-1]) for a, b in zip(served, together, strict=True))


def halves(strategy: str) -> list[torch.Tensor]:
    """Steps whose every number a float holds exactly, so that the order of sums cannot show."""

    def body() -> torch.Tensor:
        model = nn.Linear(3, 1, bias=False).double()
        nn.init.ones_(model.weight)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), strategy)
        for _ in range(8):
            (model.weight - laconic.rank()).square().sum().mul(0.5).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().clone()

    setting = Compute(**ONE_SECOND, slowness=(1, 2, 1, 3))
    return list(laconic.simulate(body, 4, compute=setting).results)


@pytest.mark.technique("parameter_server", check=1)
@pytest.mark.parametrize("rule", ["asp(delay=0)", "ssp(0)"])
def test_no_delay_is_bsp_to_the_bit(rule: str) -> None:
    assert all(torch.equal(a, b) for a, b in zip(halves(rule), halves("bsp"), strict=True))


@pytest.mark.technique("parameter_server", check=1)
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_no_step_begins_before_the_ones_it_waits_for(delay: int) -> None:
    """Tagged updates: whoever begins step t holds everybody's steps up to t - delay - 1."""
    _, seen = serving.count(f"asp(delay={delay})", 4, 12, compute=Compute(**ONE_SECOND, slowness=(1, 1, 1, 5)))
    assert apart(seen, 4) == delay
    assert all((moment.tags[:, : max(moment.step + 1 - delay, 0)] == 1).all() for moment in seen)


@pytest.mark.long
@pytest.mark.technique("parameter_server", check=1)
def test_unbounded_delay_is_asp() -> None:
    compute = Compute(**ONE_SECOND, slowness=(1, 2, 3, 7))
    bounded, free = (serving.busy(rule, 60, 4, compute=compute)[1] for rule in ("asp(delay=1000)", "asp"))
    for a, b in zip(bounded, free, strict=True):
        assert (a.rank, a.seconds) == (b.rank, b.seconds) and torch.equal(a.model, b.model)


def specs_of(elements: int) -> list[TensorSpec]:
    return [TensorSpec(f"layer{i}", (elements,), torch.float32) for i in range(12)]


def load(ranges: list[Range], shards: int) -> list[int]:
    return [sum(len(r) for r in ranges if r.shard == k) for k in range(shards)]


@pytest.mark.technique("parameter_server", check=2)
@pytest.mark.parametrize("shards", [2, 3, 4, 8])
def test_shards_are_equal_and_one_more_moves_its_share_only(shards: int) -> None:
    """25 million parameters."""
    specs = specs_of(25_000_000 // 12)
    for divide in (hashed, even):
        found = load(divide(specs, shards), shards)
        assert all(abs(one * shards / sum(found) - 1) <= 0.1 for one in found), found
    before = {(r.tensor, r.start): r for r in hashed(specs, shards)}
    after = hashed(specs, shards + 1)
    moved = [r for r in after if before[r.tensor, r.start].shard != r.shard]
    assert {r.shard for r in moved} == {shards}
    share = sum(map(len, moved)) / sum(map(len, after))
    assert share == pytest.approx(1 / (shards + 1), rel=0.1)
    assert all(len(r) <= BLOCK for r in after)


def test_messages_hold_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shard holds follows on both sides from the model and the word, so that no list of ranges is ever sent:
    beside its values the second push of any model says its version, clock and step, and nothing that grows with it."""
    reported: list[tuple[str, list[str]]] = []
    call = VirtualWorker.call

    def overheard(worker: VirtualWorker, address: str, message: ActorMessage, *how: Any, **more: Any) -> Any:
        reported.append((message.kind, sorted(message.fields)))
        return call(worker, address, message, *how, **more)

    def body() -> None:
        model: nn.Module = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 10))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = laconic.distribute(model, optimizer, "asp / none / ps(2, hashed)")
        for _ in range(2):
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    monkeypatch.setattr(VirtualWorker, "call", overheard)
    laconic.simulate(body, 1)
    pushes = [fields for kind, fields in reported if kind == "push"]
    assert len(pushes) == 4 and pushes[2:] == [["clock", "step", "version"]] * 2
    assert all(fields == [] for kind, fields in reported if kind == "pull")
