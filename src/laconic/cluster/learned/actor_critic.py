"""Actor and critic of placements: what is better than the critic expected becomes likelier."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.learned.learner import climb
from laconic.cluster.learned.regressor import Regressor
from laconic.cluster.learned.scorer import Scorer, Step
from laconic.cluster.learned.task_placement import Batch, placed_by

if TYPE_CHECKING:
    from torch import Tensor

KNOWN = 20  # iterations whose rewards the critic is fitted to

Draw = Callable[[np.random.Generator], Batch]
"""Returns a batch that is to be placed."""

Speeds = Callable[[Batch], NDArray[np.float64]]
"""Returns the speed of every job that has workers, as a share of its speed alone."""


def reward_of(batch: Batch, speeds: NDArray[np.float64]) -> float:
    """Return the reward of a slot: the shares of their work that jobs do in it, added up.

    - `batch`: after it was placed.
    - `speeds`: of the jobs that have workers.
    """
    return sum(float(speed) / task.work for (task, _), speed in zip(batch.everywhere, speeds, strict=True))


def fit_speeds(draw: Draw, speeds: Speeds, samples: int, seed: int, rounds: int = 300) -> Regressor:
    """Return a model of the speed of jobs, from placements at random that were run: it predicts the rewards of
    placements that were never tried.

    - `draw`: draws a batch.
    - `speeds`: what was measured of a placement.
    - `samples`: how many placements were run.
    - `seed`: of their draws.
    - `rounds`: passes over all samples.
    """
    draws, rows, values = np.random.default_rng(seed), [], []
    for _ in range(samples):
        batch = draw(draws)
        anything = Scorer(batch.actions.shape[1])  # every action is as good
        placed_by(batch, anything, draws)
        if batch.everywhere:
            rows.append(batch.speed_features())
            values.append(speeds(batch))
    table = np.concatenate(rows)
    model = Regressor(table.shape[1], seed)
    model.fit(table, np.concatenate(values), rounds)
    return model


def predicted(model: Regressor) -> Speeds:
    """Return the speeds that a model predicts.

    - `model`: what `fit_speeds` found.
    """
    return lambda batch: model.predict(batch.speed_features()) if batch.everywhere else np.zeros(0)


def train(
    scorer: Scorer,
    draw: Draw,
    speeds: Speeds,
    iterations: int,
    seed: int,
    *,
    batches: int = 16,
    times: int = 4,
    rate: float = 0.02,
    entropy: float = 0.01,
    together: float = 0.1,
    kept: int = 2,
) -> Scorer:
    """Return the network after it has learned to place batches.

    In every iteration some batches are placed by draws, each several times; a critic, which is fitted to rewards of
    earlier ones, too, says what was expected of each, and the actions of placements that were better become likelier.
    Those of the last iterations are seen again.

    - `scorer`: the actor before.
    - `draw`: draws a batch.
    - `speeds`: of the jobs of a placement: predicted, for training off line, or measured, for tuning on line.
    - `iterations`: how often.
    - `seed`: of draws.
    - `batches`: that an iteration draws, each of which is placed so many `times`.
    - `rate`: of Adam, which falls to nothing in the end.
    - `entropy`: the weight of the bonus for undecided distributions.
    - `together`: how often a job is explored as a whole.
    - `kept`: iterations whose placements are seen again.
    """
    draws = np.random.default_rng(seed)
    critic: Regressor | None = None
    seen: deque[tuple[list[list[Step]], NDArray[np.float64], NDArray[np.float64]]] = deque(maxlen=KNOWN)
    memory: dict[str, Tensor] = {}
    for iteration in range(iterations):
        taken, states, rewards = [], [], []
        for drawn in (draw(draws) for _ in range(batches)):
            for _ in range(times):
                batch = copy.deepcopy(drawn)
                states.append(batch.state())
                taken.append(placed_by(batch, scorer, draws, together))
                rewards.append(reward_of(batch, speeds(batch)))
        seen.append((taken, np.array(states), np.array(rewards)))
        critic = critic or Regressor(len(states[0]), seed)
        critic.fit(np.concatenate([part for _, part, _ in seen]), np.concatenate([part for *_, part in seen]), 20)
        again = list(seen)[-kept:]
        table = np.concatenate([part for _, part, _ in again])
        gains = np.concatenate([part for *_, part in again]) - critic.predict(table)
        gains -= gains.reshape(-1, times).mean(axis=1).repeat(times)  # what the critic does not see of a batch
        gains /= gains.std() + 1e-9
        steps = [(step, gain) for (parts, *_), own in zip(again, np.split(gains, len(again)), strict=True)
                 for part, gain in zip(parts, own, strict=True) for step in part]  # fmt: skip
        slower = rate * (1 - iteration / iterations)
        scorer = climb(scorer, [s for s, _ in steps], np.array([g for _, g in steps]), 1, slower, entropy, memory)
    return scorer
