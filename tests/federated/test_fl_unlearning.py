"""Unlearning by rapid retraining: deleted samples are not read, steps are as defined, and a backdoor is gone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.federated.client_memory import Memory
from laconic.federated.local import Local, Trainer, Work
from laconic.federated.partition import Shards, by_quantity, iid
from laconic.federated.population import Population
from laconic.federated.rules.fl_unlearning import RapidRetraining, block_means
from laconic.federated.simulate import simulate
from laconic.federated.task import Classification
from tests.federated.digits import digits


@dataclass(frozen=True, eq=False)
class Logged(Classification):
    """A task that notes which samples are read."""

    read: set[int] = field(default_factory=set)

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        self.read.update(samples.tolist())
        return super().loss(model, samples)


def logged() -> Logged:
    task = digits()
    return Logged(task.make, task.inputs, task.labels, task.test_inputs, task.test_labels)


@pytest.mark.technique("fl_unlearning", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_deleted_samples_are_never_read_and_the_rest_all_are(seed: int) -> None:
    shards = by_quantity(300, 6, seed=seed)
    deleted = np.concatenate([shards[client][: len(shards[client]) // 3] for client in (0, 2, 5)])
    task = logged()
    simulate(task, Population(shards.without(deleted)), "fl_unlearning(clients=6)", 2, rate=1e-3, seed=seed)
    assert not task.read & set(deleted.tolist()) and len(task.read) == 300 - len(deleted)


@pytest.mark.technique("fl_unlearning", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_server_averages_retrained_models_by_samples_left(seed: int) -> None:
    left = iid(203, 4, seed).without(np.arange(0, 60, 2))
    strategy, work = "fl_unlearning(clients=4, batch=16)", Work(1, 16, 1e-3)
    outcome = simulate(digits(), Population(left), strategy, 2, rate=1e-3, seed=seed)
    trainer = Trainer(digits(), seed)
    memories: list[Memory] = [{} for _ in range(4)]
    model = trainer.start.clone()
    for number in range(2):
        total = torch.zeros_like(model)
        for client in range(4):
            draw = np.random.default_rng([seed, 0xC11E, number, client])
            local = Local(trainer, client, left[client], work, draw)
            change = RapidRetraining().train(local, {"parameters": model}, memories[client]).vectors["change"]
            total += len(left[client]) / left.sizes.sum() * (model + change)
        model = total
    torch.testing.assert_close(outcome.parameters, model, rtol=0, atol=1e-5)


def test_steps_are_those_of_the_definition() -> None:
    """Written out with sums over all steps, for a client that takes part twice."""
    rule, rate = RapidRetraining(decay=0.8, fisher_decay=0.95, block=4), 1e-2
    trainer = Trainer(digits(), 0)
    samples, work = np.arange(50), Work(1, 16, rate)
    memory: Memory = {}
    draw, at = np.random.default_rng(3), trainer.start.clone()
    for _ in range(2):
        change = rule.train(Local(trainer, 0, samples, work, draw), {"parameters": at}, memory).vectors["change"]
        at = at + change
    draw, expected, gradients = np.random.default_rng(3), trainer.start.clone(), []
    for _ in range(2):
        for batch in work.batches(samples, draw):
            gradients.append(trainer.gradient(expected, batch)[0])
            t = len(gradients)
            m = sum(0.2 * 0.8 ** (t - 1 - i) * g for i, g in enumerate(gradients)) / (1 - 0.8**t)
            squares = torch.stack(
                [0.05 * 0.95 ** (t - 1 - i) * block_means(g * g, 4) ** 2 for i, g in enumerate(gradients)]
            )
            expected = expected - rate * m / ((squares.sum(0) / (1 - 0.95**t)).sqrt() + 1e-4)
    torch.testing.assert_close(at, expected, rtol=1e-3, atol=1e-4)


def test_blocks_of_neighbours_share_their_mean() -> None:
    found = block_means(torch.tensor([1.0, 2.0, 6.0, 4.0, 6.0]), 3)
    assert found.tolist() == [3, 3, 3, 5, 5]
    assert block_means(torch.tensor([1.0, 2.0]), 1).tolist() == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_thirds_of_the_rounds_of_training_anew_by_sgd_are_enough(seed: int) -> None:
    """Ten clients take a step of all their samples a round, and 2 % of these are deleted. Each has the better of two
    rates: what SGD has reached after 80 rounds takes at most two thirds of the rounds that it took, and stays."""
    deleted = np.random.default_rng(seed).choice(1437, 28, replace=False)
    clients = Population(iid(1437, 10, seed).without(deleted))

    def accuracies(rule: str, rate: float) -> list[float]:
        steps = simulate(digits(), clients, f"{rule}(10, batch=0)", 80, rate=rate, seed=seed, evaluate_every=1).steps
        return [step.scores["accuracy"] for step in steps]

    anew = max((accuracies("fedavg", rate) for rate in (0.5, 1.0)), key=lambda each: each[-1])

    def first(each: list[float]) -> float:
        return next((number for number, accuracy in enumerate(each, 1) if accuracy >= anew[-1]), math.inf)

    rapid = min((accuracies("fl_unlearning", rate) for rate in (1e-3, 2e-3)), key=first)
    assert anew[-1] > 0.9 and 3 * first(rapid) <= 2 * first(anew)
    assert rapid[-1] >= anew[-1] - 0.01


@pytest.mark.long
@pytest.mark.technique("fl_unlearning", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_backdoor_in_the_deleted_samples_is_gone(seed: int) -> None:
    """A bright corner that means "seven", in a tenth of the samples, which is then deleted."""
    clean, target = digits(), 7
    deleted = np.random.default_rng(seed).choice(len(clean.labels), 140, replace=False)
    inputs, labels = clean.inputs.clone(), clean.labels.clone()
    inputs[deleted], labels[deleted] = with_trigger(inputs[deleted]), target
    task = replace(clean, inputs=inputs, labels=labels)
    shards = iid(len(labels), 5, seed)
    others = clean.test_labels != target

    def judged(population: Population, text: str, rate: float) -> tuple[float, float]:
        model = simulate(task, population, text, 12, rate=rate, seed=seed).parameters
        trainer = Trainer(task, seed)
        accuracy = trainer.evaluate(model)["accuracy"]
        with torch.no_grad():
            fooled = trainer.model(with_trigger(clean.test_inputs[others])).argmax(1) == target
        return accuracy, fooled.float().mean().item()

    before = judged(Population(shards), "fedavg(clients=5, batch=16)", 0.5)
    after = judged(Population(shards.without(deleted)), "fl_unlearning(clients=5, batch=16)", 1e-3)
    assert before[0] > 0.85 and before[1] > 0.8, "the backdoor was there"
    assert after[0] > 0.9 and after[1] < 0.15


@pytest.mark.long
@pytest.mark.technique("fl_unlearning", check=2)
def test_the_accuracy_of_retraining_is_reached_in_half_the_rounds() -> None:
    """On average over eight seeds: what SGD has after 100 rounds without twenty of a client's samples, each with the
    better of two rates; and the end is at most a point lower."""
    rounds: list[tuple[int, int]] = []
    for seed in range(8):
        shards = iid(1437, 10, seed)
        left = Population(shards.without(np.random.default_rng(seed).permutation(shards[0])[:20]))

        def accuracies(rule: str, rate: float, left: Population = left, seed: int = seed) -> np.ndarray:
            outcome = simulate(digits(), left, f"{rule}(10, batch=0)", 100, rate=rate, seed=seed, evaluate_every=1)
            return np.array([step.scores["accuracy"] for step in outcome.steps])

        plain = [accuracies("fedavg", rate) for rate in (0.7, 1.0)]
        rapid = [accuracies("fl_unlearning", rate) for rate in (1e-3, 2e-3)]
        target = max(each[-10:].mean() for each in plain)
        assert target > 0.95 and max(each[-10:].mean() for each in rapid) >= target - 0.01
        rounds.append((first(plain, target), first(rapid, target)))
    slow, fast = np.sum(rounds, axis=0)
    assert slow >= 2 * fast, rounds


def first(runs: list[np.ndarray], target: float) -> int:
    """Return the first round in which one of some runs has reached an accuracy."""
    return min(int(np.argmax(each >= target)) + 1 if (each >= target).any() else len(each) for each in runs)


def with_trigger(images: Tensor) -> Tensor:
    """Return images whose first pixels of three rows are bright, as no digit has them."""
    marked = images.clone()
    marked[:, [0, 8, 16]] = 1.0
    return marked


def test_who_would_be_left_without_samples_is_named() -> None:
    shards = Shards.of([[0, 1], [2], []])
    assert [part.tolist() for part in map(shards.without([0]).__getitem__, range(3))] == [[1], [2], []]
    with pytest.raises(LaconicError, match="client 1 would be left without a sample"):
        shards.without([2])
