"""Epochs and batches that fill the time of the slowest device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laconic.federated.pace import Pace
from laconic.federated.partition import Shards, by_label, by_quantity, dirichlet, iid
from laconic.federated.population import Population
from laconic.federated.rules.amble import Amble, Plan, filled
from laconic.federated.simulate import simulate
from tests.federated.digits import digits
from tests.federated.racing import seconds_to


def unequal(seed: int, clients: int = 12, beside: float = 1.0) -> Population:
    """Return clients with unequal amounts of data, speeds and links; a step costs as much as some samples."""
    draw = np.random.default_rng(seed)
    speed = 10 ** draw.uniform(-3.5, -2.5, clients)
    return Population(
        by_quantity(1437, clients, 2.0, seed),
        speed,
        10 ** draw.uniform(5.5, 6.5, clients),
        10 ** draw.uniform(6, 7, clients),
        step_seconds=beside * 5 * speed,
    )


@pytest.mark.long
@pytest.mark.technique("amble", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("beside", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("compression", ["none", "topk(0.1)"])
def test_everybody_is_ready_in_time_and_has_none_for_another_epoch(seed: int, beside: float, compression: str) -> None:
    """As planned, and on the clock."""
    clients = unequal(seed, beside=beside)
    outcome = simulate(digits(), clients, f"amble(12) / {compression}", 1, rate=0.01, seed=seed)
    plan: Plan = outcome.server.kept["plan"]
    pace = Pace.of(clients)
    assert (plan.seconds <= plan.deadline * (1 + 1e-9)).all()
    assert (plan.seconds + pace.epoch(plan.batch) > plan.deadline * (1 + 1e-9)).all()
    assert outcome.seconds == pytest.approx(plan.seconds.max()) == pytest.approx(plan.deadline)
    slowest = int(np.argmax(plan.seconds))
    assert plan.epochs.max() > 3
    assert plan.epochs[slowest] == 1 or plan.seconds[slowest] < plan.deadline * (1 + 1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batches_grow_only_where_steps_cost_time_and_devices_are_fast(seed: int) -> None:
    def batches(beside: float) -> np.ndarray:
        clients = unequal(seed, beside=beside)
        pace = Pace.of(clients)
        return filled(pace, pace.transfer(9640, 9640), 10, 160).batch

    assert (batches(0.0) == 10).all()
    costly = batches(10.0)
    assert costly.max() > 10 and costly.min() == 10 and costly.max() <= 160
    clients = unequal(seed, beside=10.0)
    assert (costly <= np.maximum(10, clients.shards.sizes)).all()


@pytest.mark.technique("amble", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_rates_are_in_proportion_to_batches(seed: int) -> None:
    clients = unequal(seed, beside=10.0)
    outcome = simulate(digits(), clients, "amble(12)", 1, rate=0.01, seed=seed)
    rule = Amble(clients=12)
    works = [rule.work(outcome.server, client, clients, 0.01) for client in range(12)]
    assert len({work.batch for work in works}) > 1
    assert [work.rate / work.batch for work in works] == pytest.approx([0.001] * 12)


@pytest.mark.technique("amble", check=2)
@pytest.mark.parametrize("beside", [0.0, 0.05])
def test_equal_devices_do_a_single_epoch_as_in_fedavg(beside: float) -> None:
    clients = Population(iid(1200, 6), 1e-3, step_seconds=beside)
    ends = [simulate(digits(), clients, f"{rule}(6)", 3, rate=0.1).parameters for rule in ("amble", "fedavg")]
    assert torch.equal(*ends)


def idle(clients: Population, text: str) -> float:
    """Return the share of a round's time in which devices wait for it to end, from when each would have reported."""
    whole = simulate(digits(), clients, text, 1, rate=0.01)
    if text.startswith("amble"):
        each = whole.server.kept["plan"].seconds
    else:
        each = Pace.of(clients).epoch(10) + Pace.of(clients).transfer(9640, 9640)
    return float(1 - (each / whole.seconds).mean())


def devices(shards: Shards) -> Population:
    """Return devices of speeds 1:2:4:8, a step of which takes as long as two samples beside its own."""
    slowness = 1e-3 * np.tile([1.0, 2.0, 4.0, 8.0], len(shards) // 4)
    return Population(shards, slowness, 1e6, 1e6, step_seconds=2 * slowness)


@pytest.mark.parametrize("seed", [0, 1])
def test_devices_wait_little(seed: int) -> None:
    for shards in (iid(1437, 8, seed), by_label(digits().labels.numpy(), 8, 2, seed)):
        assert idle(devices(shards), "amble(8)") < 0.15
        assert idle(devices(shards), "fedavg(8)") > 0.4


@pytest.mark.long
@pytest.mark.technique("amble", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("split", ["even", "skewed"])
def test_the_time_of_waiting_is_worth_training_in(seed: int, split: str) -> None:
    """Each with the best of the same rates, FedAvg also with that of one and two epochs, on even data and on labels
    that are divided by Dirichlet draws."""
    labels = digits().labels.numpy()
    clients = devices(iid(1437, 8, seed) if split == "even" else dirichlet(labels, 20, 0.5, seed))
    everybody = len(clients)
    assert idle(clients, f"amble({everybody})") < 0.15
    assert idle(clients, f"fedavg({everybody})") > 0.4
    plain, filling = (
        seconds_to(0.9, digits(), clients, texts, (0.3, 0.1, 0.03), seed, 60)
        for texts in ([f"fedavg({everybody})", f"fedavg({everybody}, epochs=2)"], [f"amble({everybody})"])
    )
    assert filling < plain < np.inf
