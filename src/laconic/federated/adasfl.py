"""AdaSFL: split federated learning whose batches let all workers finish together, and whose period follows training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.errors import LaconicError
from laconic.federated.pace import Pace
from laconic.federated.partition import Integers
from laconic.federated.population import Floats, Population
from laconic.federated.split import SplitTraining
from laconic.federated.task import Classification
from laconic.registry import technique

_FIRST_PERIOD = 10  # before anything is known of the training


@dataclass(frozen=True, eq=False)
class SplitRound:
    """A round: iterations of all workers, and an averaging of their bottoms.

    - `seconds`: when it ended.
    - `period`: its number of iterations.
    - `batches`: the samples of each worker's iteration.
    - `iteration_seconds`: how long each worker's iteration takes.
    - `up_bytes`, `down_bytes`: what each worker has sent and received in it, labels aside.
    - `scores`: what the model was judged by after it.
    """

    seconds: float
    period: int
    batches: Integers
    iteration_seconds: Floats
    up_bytes: Integers
    down_bytes: Integers
    scores: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class SplitOutcome:
    """What came of split training: the model, and its rounds in order."""

    model: nn.Module
    rounds: Sequence[SplitRound]

    def first(self, accuracy: float) -> SplitRound | None:
        """Return the first round after which the model was so accurate."""
        return next((r for r in self.rounds if r.scores["accuracy"] >= accuracy), None)


def equal_time_batches(sample_seconds: Floats, largest: int) -> Integers:
    """Return batches with which all workers take equally long; that of the fastest is the largest.

    - `sample_seconds`: how long each worker computes and transfers a sample.
    """
    shares = largest * sample_seconds.min() / sample_seconds
    return np.asarray(np.maximum(1, np.floor(shares * (1 + 1e-12))), dtype=np.int64)


def best_period(iteration: float, aggregation: float, drift: float, longest: int) -> int:
    """Return the number of iterations between averagings with which a given progress takes least time.

    Rounds are taken to be needed in proportion to (1 + drift·(mean of k² over the iterations k = 0 … τ−1))/τ.

    - `iteration`, `aggregation`: how many seconds an iteration and an averaging take.
    - `drift`: the squared error of a local gradient after one step from the common model, relative to the gradient.
    """

    def seconds(period: int) -> float:
        needed = (1 + drift * (period - 1) * (2 * period - 1) / 6) / period
        return needed * (period * iteration + aggregation)

    return min(range(1, longest + 1), key=seconds)


class DriftEstimate:
    """How much local models drift, found anew in every round from the bottoms that the server averages.

    With g the mean gradient of a round, the squared distance of bottoms from their mean over that of the mean from its
    start is how diverse gradients are, and the change of g between rounds over the distance of their starts is the
    smoothness L: a local gradient is off by (rate·L)²·diversity after one step, of its squared length.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.value: float | None = None
        self._start: Tensor | None = None
        self._gradient: Tensor | None = None

    def update(self, start: Tensor, ends: Sequence[Tensor], weights: Sequence[float], steps: int) -> None:
        """Learn from a round of so many iterations.

        - `start`: the common bottom at its beginning.
        - `ends`: the workers' bottoms before they are averaged, with these weights.
        """
        mean = sum((w * end for w, end in zip(weights, ends, strict=True)), torch.zeros_like(start))
        gradient, moved = (start - mean) / (self._rate * steps), float((start - mean).square().sum())
        spread = sum(w * float((end - mean).square().sum()) for w, end in zip(weights, ends, strict=True))
        if self._start is not None and self._gradient is not None and moved > 0:
            way = float((start - self._start).norm())
            smoothness = float((gradient - self._gradient).norm()) / max(way, 1e-30)
            found = (smoothness * self._rate) ** 2 * spread / moved
            self.value = found if self.value is None else (self.value + found) / 2
        self._start, self._gradient = start, gradient


def drawn(samples: Integers, count: int, seed: int, worker: int, iteration: int) -> Integers:
    """Return the samples of a worker's iteration: so many of its own, at random."""
    draw = np.random.default_rng([seed, 0xADA5, worker, iteration])
    return np.asarray(draw.choice(samples, size=count, replace=False))


@technique(
    "adasfl",
    axis="federated",
    paper="Liao et al., IEEE/ACM Transactions on Networking, 2023",
    why_no_word="Its workers hold the first layers of a model and its server the others, and a sentence says what "
    "clients with whole models exchange; `laconic.federated.adasfl.adasfl` trains.",
)
def adasfl(
    task: Classification,
    population: Population,
    rounds: int,
    *,
    cut: int,
    rate: float,
    batch: int = 128,
    period: int | None = None,
    longest: int = 50,
    equal_batches: bool = False,
    seconds: float = math.inf,
    seed: int = 0,
) -> SplitOutcome:
    """Train a model that is cut in two, with workers of unequal speeds and links, on a virtual clock.

    In an iteration every worker sends its bottom's activations of a batch, and the labels; the server runs its top
    forward and backward, and returns the gradients of the activations. After some iterations bottoms are averaged,
    weighted by batches. The fastest worker has the largest batch, the others as much less as they take longer for a
    sample, so that all finish together; their rates are in proportion. The period is chosen anew after every round, as
    that with which a given progress takes least time, since long periods save averagings and let bottoms drift apart.

    Readings chosen, since only the paper's abstract is known: there is one top, which learns from all activations of an
    iteration together; the bound behind the period is that of `best_period`, with a drift that is estimated from the
    bottoms alone. The server takes no time, and labels, which are a few bytes, are not counted.

    - `task`: its model is a `Sequential`.
    - `population`: `sample_seconds` is what a worker takes for a sample's way through the bottom and back.
    - `rounds`: how many rounds to make at most.
    - `cut`: how many of the model's modules are at the workers.
    - `rate`: the learning rate of the top, and of a worker with the largest batch.
    - `batch`: the largest batch.
    - `period`: iterations of every round; if it is not given, it is chosen.
    - `longest`: the most iterations that are chosen.
    - `equal_batches`: whether all have the largest batch: with a period this is plain split federated learning.
    - `seconds`: a round that would end later is made shorter, or not at all.
    - `seed`: of everything that is drawn.
    """
    model = task.build(seed)
    if not isinstance(model, nn.Sequential) or not 0 < cut < len(model):
        raise LaconicError(
            f"a model is cut between the modules of a Sequential, and {cut} modules are not a part of it"
        )
    workers, pace = len(population), Pace.of(population)
    training = SplitTraining(model[:cut], model[cut:], workers, functional.cross_entropy)
    each = training.activation_bytes(task.inputs[:1])
    per_sample = pace.sample + pace.transfer(each, each)
    sizes = np.full(workers, batch) if equal_batches else equal_time_batches(per_sample, batch)
    sizes = np.minimum(sizes, population.shards.sizes)
    iteration = sizes * per_sample + pace.step
    aggregation = float(pace.transfer(training.bottom_bytes, training.bottom_bytes).max())
    weights, rates = (sizes / sizes.sum()).tolist(), (rate * sizes / sizes.max()).tolist()
    drift, now, made, done = DriftEstimate(rate), 0.0, 0, list[SplitRound]()
    for _ in range(rounds):
        steps = period or _FIRST_PERIOD
        if period is None and drift.value is not None:
            steps = best_period(float(iteration.max()), aggregation, drift.value, longest)
        steps = min(steps, int(min((seconds - now - aggregation) / iteration.max(), 1e18)))
        if steps < 1:
            break
        start, counted = training.flat(0), np.zeros((workers, 2), dtype=np.int64)
        for number in range(made, made + steps):
            chosen = [
                torch.from_numpy(drawn(population.shards[w], int(sizes[w]), seed, w, number)) for w in range(workers)
            ]
            inputs, labels = [task.inputs[c] for c in chosen], [task.labels[c] for c in chosen]
            counted += np.array(training.iterate(inputs, labels, rates, rate))
        made += steps
        drift.update(start, [training.flat(w) for w in range(workers)], weights, steps)
        training.average(weights)
        counted += training.bottom_bytes
        now += steps * float(iteration.max()) + aggregation
        scores = task.evaluate(training.model)
        done.append(SplitRound(now, steps, sizes, iteration, counted[:, 0], counted[:, 1], scores))
    return SplitOutcome(training.model, done)
