"""A parameter server whose servers die: from a snapshot, from a copy; and what workers learn of those who are gone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn import functional

import laconic
from laconic.architecture.server.actor import Shard
from laconic.architecture.server.sharding import even
from laconic.architecture.server.store import Store
from laconic.compression.none import Identity
from laconic.errors import WorkerLost
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.inbox import Inbox
from laconic.sync.asp import ASP
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute
from laconic.virtual.membership import Event
from laconic.virtual.rpc import Fault, Faults
from laconic.virtual.simulate import Simulated
from laconic.worker import ActorMessage

WORKERS, STEPS = 3, 40


def train(
    strategy: str, faults: tuple[Fault, ...] = (), events: tuple[Event, ...] = (), servers: int = 2
) -> tuple[Simulated, list[int]]:
    """A small regression; the pushes that each worker saw acknowledged."""
    acknowledged = [0] * WORKERS

    def body() -> float:
        torch.manual_seed(0)
        model: torch.nn.Module = torch.nn.Linear(6, 3)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.3)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        draw = torch.Generator().manual_seed(laconic.rank())
        loss = torch.tensor(math.inf)
        for _ in range(STEPS):
            x = torch.randn(16, 6, generator=draw)
            loss = functional.cross_entropy(model(x), x[:, :3].argmax(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            acknowledged[laconic.rank()] += 1
        connect()
        return loss.item()

    out = laconic.simulate(
        body, WORKERS, Network.flat(WORKERS + servers, 1e9, 1e-3), Compute(0.01, 0.02, 0.001), events=events,
        servers=servers, heartbeat_seconds=0.3, faults=Faults(faults, retry_seconds=0.05, snapshot_every=5),
    )  # fmt: skip
    return out, acknowledged


def received(out: Simulated) -> list[Counter[int]]:
    """Return, by actor, how many writes of each worker it has, from what its snapshots and replays left."""
    return [Counter({w: s.received for w, s in o.inbox._senders.items()}) for o in out.rpc.hosted_actors.values()]


@pytest.mark.long
@pytest.mark.technique("parameter_server", check=3)
def test_with_a_replica_a_server_may_be_lost_for_good() -> None:
    calm, _ = train("asp / none / ps(shards=2, replicas=1)")
    out, acknowledged = train("asp / none / ps(shards=2, replicas=1)", (Fault(0.4, math.inf, 0),))
    assert acknowledged == [STEPS] * WORKERS, "training goes on"
    joined_and_planted = 2
    alive = [o.inbox for o in out.rpc.hosted_actors.values() if o.server != 0]
    assert len(alive) == 2, "of two shards with a copy each, one copy of each is left"
    for inbox in alive:
        pushes = {w: s.received for w, s in inbox._senders.items()}
        assert all(count >= STEPS + 1 for count in pushes.values()), f"nothing acknowledged is missing: {pushes}"
        assert max(pushes.values()) <= STEPS + joined_and_planted + 1, "and nothing came twice (join, plant, goodbye)"
    assert out.results[0] == pytest.approx(calm.results[0], rel=0.3)


def test_without_a_replica_the_loss_of_a_server_is_reported() -> None:
    with pytest.raises(WorkerLost, match=r"server 0 is gone for good.*replicas=1"):
        train("asp / none / ps(shards=2)", (Fault(0.4, math.inf, 0),))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["asp / none / ps(shards=2)", "ssp(2)", "bsp / none / ps"])
def test_a_killed_server_returns_from_its_snapshot_and_a_replay(strategy: str) -> None:
    calm, _ = train(strategy)
    out, acknowledged = train(strategy, (Fault(0.4, 0.7, 0), Fault(0.9, 1.0, 0, worker=1)))
    assert acknowledged == [STEPS] * WORKERS
    assert received(calm) == received(out), "every write once, on every machine"
    if strategy.startswith("bsp"):
        assert out.results == calm.results, "sums in rank order do not depend on when they came"


def test_a_server_that_starts_from_nothing_waits_for_the_first_values() -> None:
    """Workers repeat their writes in any order: pushes that come before the first values count all the same."""
    specs = [TensorSpec("x", (4,), torch.float32)]
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=1.0)

    def received_in(order: tuple[int, ...]) -> tuple[Shard, list[Answer]]:
        store = Store(even(specs, 1), specs, [parameter], optimizer, 2)
        shard = Shard(store, ASP(), Identity(), lambda rank, step, name: None, "same")  # type: ignore[arg-type,return-value]
        inbox = Inbox(shard)
        written = {
            0: ActorMessage("plant", {}, (torch.full((4,), 5.0),)),
            1: ActorMessage("push", {}, (torch.ones(4),)),
        }
        answers = []
        for sender in order:
            answers += inbox.receive(Envelope(sender, 0, 1, True, 0, 0, written[sender]))
            if sender == 1:  # what a sender writes after an early push waits with it
                answers += inbox.receive(Envelope(1, 0, 2, True, 0, 0, written[1]))
        return shard, answers

    (first, usual), (again, reordered) = received_in((0, 1)), received_in((1, 0))
    assert torch.equal(first.store.values[0], again.store.values[0])
    assert first.store.clocks == again.store.clocks and first.store.version == again.store.version == 2
    receipts = [[a.message.fields for a in answers if a.to == 1 and a.message] for answers in (usual, reordered)]
    assert receipts[0] == receipts[1] and [fields["clock"] for fields in receipts[0]] == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["asp / none / ps", "ssp(1)", "bsp / none / ps"])
def test_a_killed_worker_is_dropped_from_barriers_and_may_come_back(strategy: str) -> None:
    gone, acknowledged = train(strategy, events=(Event(0.3, 2, "die"),))
    assert acknowledged[:2] == [STEPS, STEPS] and acknowledged[2] < STEPS
    back, acknowledged = train(strategy, events=(Event(0.3, 2, "die"), Event(0.5, 2, "return")))
    assert acknowledged[2] > STEPS, "its second life makes all its steps"
    assert gone.seconds < back.seconds
