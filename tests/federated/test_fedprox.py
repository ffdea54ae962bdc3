"""FedProx among stragglers: they send what they have done in time, and the term keeps the loss steady."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from laconic.federated.local import Trainer, Work, held_near
from laconic.federated.partition import by_label, iid
from laconic.federated.population import Population
from laconic.federated.simulate import simulate
from tests.federated.digits import digits


@pytest.mark.parametrize("seed", [0, 1])
def test_stragglers_send_what_they_have_done_in_time(seed: int) -> None:
    """Of 33 steps with ten samples each: all by the first client, five by the second, one by the third, which takes
    longer for it."""
    clients = Population(iid(304, 3, seed), [1e-3, 6e-3, 1.0], 1e12, 1e12, step_seconds=[0, 10e-3, 0])
    outcome = simulate(digits(), clients, "fedprox(3, epochs=3, mu=0.5, seconds=0.4)", 1, rate=0.1, seed=seed)
    trainer = Trainer(digits(), seed)
    expected = torch.zeros_like(trainer.start)
    for client, steps in enumerate((33, 5, 1)):
        samples, work = clients.shards[client], Work(3, 10, 0.1, steps=steps)
        draw = np.random.default_rng([seed, 0xC11E, 0, client])
        end = trainer.descend(trainer.start, work.batches(samples, draw), work, held_near(trainer.start, 0.5)).end
        expected += len(samples) / 304 * end
    torch.testing.assert_close(outcome.parameters, expected, rtol=0, atol=1e-6)
    assert outcome.seconds == pytest.approx(10.0)
    quick = simulate(digits(), Population(iid(304, 3, seed)), "fedprox(3, epochs=3, seconds=0.4)", 1, rate=0.1)
    assert 0.29 < quick.seconds < 0.4


def losses(text: str, clients: Population, rate: float, seed: int) -> np.ndarray:
    """Return the loss over all clients' samples after each of 30 rounds."""
    task = replace(digits(), test_inputs=digits().inputs, test_labels=digits().labels)
    outcome = simulate(task, clients, text, 30, rate=rate, seed=seed, evaluate_every=1)
    return np.array([step.scores["loss"] for step in outcome.steps])


def risen(curve: np.ndarray) -> float:
    """Return by how much a curve has gone up, all rises together."""
    return float(np.diff(curve).clip(min=0).sum())


@pytest.mark.long
@pytest.mark.technique("fedprox", check=3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_partial_work_of_stragglers_is_worth_more_than_to_drop_them(seed: int) -> None:
    """Nine of ten devices with two shards of labels manage 1 to 20 epochs where the others do 20. Against FedAvg with
    the better of two rates, whose deadline drops them, the loss ends lower and rises less on the way; and the stronger
    the term, the less it rises."""
    draw, shards = np.random.default_rng(seed), by_label(digits().labels.numpy(), 50, 2, seed)
    managed = np.where(np.arange(50) < 45, draw.uniform(1, 20, 50), 20)
    clients = Population(shards, 1e-3 * 20 / draw.permutation(managed), 1e12, 1e12)
    seconds = 1e-3 * 20 * int(shards.sizes.max())
    dropping = f"fedavg(10, epochs=20) / none / server(deadline={seconds + 1e-3:.4f})"
    plain = min((losses(dropping, clients, rate, seed) for rate in (0.1, 0.03)), key=lambda curve: curve[-1])
    free, default, held = (
        losses(f"fedprox(10, epochs=20, mu={mu}, seconds={seconds:.4f})", clients, 0.1, seed) for mu in (0, 0.01, 0.1)
    )
    assert default[-1] < plain[-1] and risen(default) < risen(plain)
    assert risen(held) < risen(default) < risen(free)
