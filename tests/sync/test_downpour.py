"""Downpour: serial Adagrad alone, bytes by period, models of mixed versions, and a warm start."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.sync.downpour import Downpour
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.sync import digits, rounds, serving
from tests.sync.stores import Served

ONE_SECOND = {"forward_seconds": 0.4, "backward_seconds": 0.5, "step_seconds": 0.1}


@pytest.mark.technique("downpour", check=1)
def test_one_replica_is_serial_adagrad() -> None:
    (run,) = rounds.simulated("downpour", 15, rounds.sgd, workers=1)
    model = rounds.net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=10 * 0.1)
    for step in range(15):
        rounds.loss(model, 0, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(run.path[-1], rounds.flat(model.parameters()))


def test_one_replica_with_the_users_optimizer_is_serial_too() -> None:
    (run,) = rounds.simulated("downpour(optimizer=user)", 10, rounds.adamw, workers=1)
    (plain,) = rounds.simulated("bsp", 10, rounds.adamw, workers=1)
    assert torch.equal(run.path[-1], plain.path[-1])


@pytest.mark.technique("downpour", check=2)
@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (4, 1), (1, 3), (2, 6)])
def test_bytes_are_those_of_its_periods(n_push: int, n_fetch: int) -> None:
    steps, size = 12, 8 * rounds.flat(rounds.net().parameters()).numel()

    def body() -> tuple[float, float]:
        ledger, before = connect().ledger, [0.0, 0.0]

        def begin() -> None:
            before[:] = ledger.sent_bytes(Kind.PAYLOAD), ledger.received_bytes(Kind.PAYLOAD)

        rounds.train(f"downpour(n_fetch={n_fetch}, n_push={n_push}) / none / ps(2)", steps, before=begin)
        return ledger.sent_bytes(Kind.PAYLOAD) - before[0], ledger.received_bytes(Kind.PAYLOAD) - before[1]

    for sent, received in laconic.simulate(body, 3, compute=Compute(**ONE_SECOND)).results:
        assert sent == pytest.approx(steps * size / n_push)
        assert received == pytest.approx(steps * size / n_fetch)


def test_sums_of_gradients_are_pushed() -> None:
    """With plain steps on the server, n_push = 4 moves it as far as four pushes of the same gradients would."""
    (run,) = rounds.simulated("downpour(n_fetch=4, n_push=4, optimizer=user)", 4, rounds.sgd, workers=1)
    model = rounds.net()
    inner = rounds.sgd(model.parameters())
    for step in range(4):
        rounds.loss(model, 0, step).backward()
        inner.step()
        inner.zero_grad()
    torch.testing.assert_close(run.path[-1], rounds.flat(model.parameters()), rtol=0, atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("downpour", check=3)
def test_replicas_and_shards_apart_reach_what_one_reaches() -> None:
    """Four replicas, two shards on two of them; the target is the loss of serial Adagrad after 150 gradients, at its
    best rate of 0.003, 0.01 and 0.03."""
    target = serving.train("downpour", 150, 1, digits.sgd(0.01))[0].results[0]
    setting = {"network": Network.flat(4, 1e6, 1e-3), "compute": Compute(**ONE_SECOND, law="exponential")}
    simulated, trace = serving.train("downpour / none / ps(2)", 300, 4, digits.sgd(0.01), **setting)
    assert any(noted["version_spread"] > 0 for noted in trace.noted)
    assert simulated.results[0] <= target


def test_a_warm_start_lets_one_replica_begin() -> None:
    """The others' first gradients are dropped, and their reads wait for the tenth update."""
    simulated, pushes = serving.busy("downpour(warm_start=10)", 40, 4, compute=Compute(**ONE_SECOND))
    early = [push for push in pushes if push.seconds < 9.5]
    assert {push.rank for push in early} == {0} and len(early) == 9
    assert {push.rank for push in pushes} == {0, 1, 2, 3}
    assert simulated.rpc is not None
    (hosted,) = simulated.rpc.hosted_actors.values()
    applied = hosted.inbox.actor.store.version  # type: ignore[attr-defined]
    assert applied == 40 - 3


def test_staleness_is_how_many_pushes_were_applied_since_the_read() -> None:
    served = Served(Downpour(optimizer="user"), workers=2)
    served.store.version = 5
    assert served.push(0, 1.0, version=2) == {"staleness": 3}
    assert served.push(1, 1.0, version=9) == {"staleness": 0}  # a read of a version that a failed server had
