"""Layers at two paces, and weights that fade with age."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from laconic.errors import StrategyError
from laconic.federated.local import Trainer, Work
from laconic.federated.partition import by_quantity, iid
from laconic.federated.population import Population
from laconic.federated.rules.astw_fedavg import Received, faded_weights
from laconic.federated.simulate import simulate
from tests.federated.digits import digits

SHALLOW, DEEP = 4 * (64 * 32 + 32), 4 * (32 * 10 + 10)


@pytest.mark.technique("astw_fedavg", check=1)
@pytest.mark.parametrize(("clients", "seed"), [(3, 0), (5, 1)])
def test_bytes_of_a_loop(clients: int, seed: int) -> None:
    """Ten rounds of shallow layers, then five of both."""
    people = Population(by_quantity(600, 9, 2.0, seed))
    outcome = simulate(digits(), people, f"astw_fedavg({clients}, batch=0)", 30, rate=0.1, seed=seed)
    for way in ("up_bytes", "down_bytes"):
        so_far = np.array([getattr(step, way) for step in outcome.steps])
        each = np.diff(so_far, prepend=0)
        assert so_far[14] == (15 * SHALLOW + 5 * DEEP) * clients and so_far[29] == 2 * so_far[14]
        assert (each[:10] == clients * SHALLOW).all() and (each[10:15] == clients * (SHALLOW + DEEP)).all()


@pytest.mark.technique("astw_fedavg", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_with_both_in_every_round_and_no_fading_it_is_fedavg_with_absent_clients_as_they_were(seed: int) -> None:
    people = Population(by_quantity(500, 7, 2.0, seed))
    text = "astw_fedavg(3, batch=20, loop=1, both=1, base=1)"
    outcome = simulate(digits(), people, text, 6, rate=0.1, seed=seed)
    trainer = Trainer(digits(), seed)
    model, last = trainer.start, dict[int, torch.Tensor]()
    for version, step in enumerate(outcome.steps):
        for client in step.clients:
            samples, work = people.shards[client], Work(1, 20, 0.1)
            draw = np.random.default_rng([seed, 0xC11E, version, client])
            last[client] = trainer.descend(model, work.batches(samples, draw), work).end
        total = sum(len(people.shards[client]) for client in last)
        model = torch.stack([len(people.shards[c]) / total * end for c, end in last.items()]).sum(0)
    assert len(last) > 3
    torch.testing.assert_close(outcome.parameters, model, rtol=0, atol=1e-6)


@pytest.mark.technique("astw_fedavg", check=2)
@pytest.mark.parametrize("now", [9, 40])
def test_weights_fall_with_every_round_of_age_and_sum_to_one(now: int) -> None:
    held = [
        Received(torch.zeros(1), at, samples) for at, samples in ((now, 10), (now - 1, 10), (now - 9, 10), (now, 25))
    ]
    weights = faded_weights(held, now, math.e / 2)
    assert sum(weights) == pytest.approx(1)
    assert weights[0] / weights[1] == pytest.approx(math.e / 2) and weights[0] / weights[2] == pytest.approx(
        (math.e / 2) ** 9
    )
    assert weights[3] / weights[0] == pytest.approx(2.5)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_mean_of_a_run_has_these_weights_for_each_part(seed: int) -> None:
    people = Population(by_quantity(500, 6, 2.0, seed))
    outcome = simulate(digits(), people, "astw_fedavg(2, batch=50, loop=4, both=2)", 7, rate=0.1, seed=seed)
    rounds = {"shallow": range(7), "deep": (2, 3, 6)}
    cut = SHALLOW // 4
    for name, part in (("shallow", outcome.parameters[:cut]), ("deep", outcome.parameters[cut:])):
        held, last = outcome.server.kept[name], {}
        for number in rounds[name]:
            last.update(dict.fromkeys(outcome.steps[number].clients, number))
        assert {client: one.at for client, one in held.items()} == last
        weights = np.array([len(people.shards[c]) * (math.e / 2) ** (at - 6) for c, at in last.items()])
        weights /= weights.sum()
        mean = torch.stack([float(w) * held[c].values for w, c in zip(weights, last, strict=True)]).sum(0)
        torch.testing.assert_close(part, mean, rtol=0, atol=1e-6)


def test_clients_go_on_from_their_own_deep_layers() -> None:
    """One client with shallow rounds alone trains as if nobody were there: as FedAvg of itself does."""
    people = Population(iid(200, 1))
    alone, whole = (
        simulate(digits(), people, text, 4, rate=0.1) for text in ("astw_fedavg(1, loop=5, both=1)", "fedavg(1)")
    )
    cut = SHALLOW // 4
    torch.testing.assert_close(alone.parameters[:cut], whole.parameters[:cut], rtol=0, atol=1e-5)
    assert torch.equal(alone.parameters[cut:], Trainer(digits(), 0).start[cut:])


def test_a_model_without_deep_layers_is_refused() -> None:
    with pytest.raises(StrategyError, match="must be deep"):
        simulate(digits(), Population(iid(100, 4)), "astw_fedavg(2, shallow=4)", 1, rate=0.1)


def test_a_compressed_way_down_is_refused() -> None:
    with pytest.raises(StrategyError, match="write server"):
        simulate(digits(), Population(iid(100, 4)), 'astw_fedavg(2) / none / server(down="int8")', 1, rate=0.1)
