"""A small network that gives every action a score; actions that cannot be taken are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from laconic.errors import ClusterError

HIDDEN = 16


def size_of(features: int) -> int:
    """Return the weights of a network for actions that so many features describe.

    - `features`: how many.
    """
    return (features + 1) * HIDDEN + HIDDEN + 1


@dataclass(frozen=True)
class Scorer:
    """A layer of rectified units over an action's features, and a score of these; its weights are plain numbers, so
    that a policy that has learned can be written down like any other.

    - `features`: how many describe an action.
    - `weights`: all weights in a row; none: every action scores 0.
    """

    features: int
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != size_of(self.features):
            raise ClusterError(
                f"a network over {self.features} features has {size_of(self.features)} weights, not {len(self.weights)}"
            )

    def scores(self, actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the score of each action; one that is masked has minus infinity.

        - `actions`: their features, a row each.
        - `mask`: which can be taken.
        """
        if not self.weights:
            return np.where(mask, 0.0, -np.inf)
        first, bias, second, last = _layers(self.weights, self.features)
        found = np.maximum(actions @ first + bias, 0.0) @ second + last
        return np.where(mask, found, -np.inf)

    def choose(self, actions: np.ndarray, mask: np.ndarray, draws: np.random.Generator | None = None) -> int:
        """Return an action that is not masked: the best one, the first of equals; or one that is drawn by its score.

        - `actions`: their features, a row each.
        - `mask`: which can be taken.
        - `draws`: where actions are drawn, to explore.
        """
        if not mask.any():
            raise ClusterError("every action is masked; leave one that can be taken")
        scores = self.scores(actions, mask)
        if draws is not None:
            scores = scores + draws.gumbel(size=scores.shape)
        return int(scores.argmax())


@cache
def _layers(weights: tuple[float, ...], features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    flat = np.array(weights)
    first, bias, second = np.split(flat[:-1], np.cumsum([features * HIDDEN, HIDDEN]))
    return first.reshape(features, HIDDEN), bias, second, float(flat[-1])


def fresh(features: int, seed: int) -> Scorer:
    """Return a network that has learned nothing.

    - `features`: how many describe an action.
    - `seed`: of its weights.
    """
    draws = np.random.default_rng(seed)
    first = draws.normal(0, (2 / features) ** 0.5, features * HIDDEN)
    second = draws.normal(0, 0.1 / HIDDEN**0.5, HIDDEN)
    return Scorer(features, tuple(np.concatenate([first, np.zeros(HIDDEN), second, [0.0]]).tolist()))


@dataclass(frozen=True)
class Step:
    """One decision of an episode.

    - `actions`: features of the actions that there were.
    - `mask`: which could be taken.
    - `action`: the one that was.
    - `time`: when.
    """

    actions: np.ndarray
    mask: np.ndarray
    action: int
    time: float = 0.0


@dataclass(frozen=True)
class Episode:
    """What was decided from a beginning to an end, and what came of it.

    - `steps`: the decisions.
    - `returns`: the sum of rewards from each decision on.
    """

    steps: Sequence[Step]
    returns: Sequence[float]
