"""The learner: it imitates, and it finds what pays."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.learned.learner import imitate, improve
from laconic.cluster.learned.scorer import Episode, Scorer, Step, fresh


def situations(seed: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    draws = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        mask = draws.random(5) < 0.7
        mask[draws.integers(5)] = True
        found.append((draws.normal(size=(5, 3)), mask))
    return found


def best(actions: np.ndarray, mask: np.ndarray) -> int:
    """The action whose second feature is largest, of those that can be taken."""
    return int(np.where(mask, actions[:, 1], -np.inf).argmax())


def agreement(scorer: Scorer) -> float:
    unseen = situations(99, 300)
    return float(np.mean([scorer.choose(*one) == best(*one) for one in unseen]))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_network_learns_to_decide_as_it_was_shown(seed: int) -> None:
    shown = [Step(actions, mask, best(actions, mask)) for actions, mask in situations(seed, 200)]
    before = fresh(3, seed)
    after = imitate(before, shown)
    assert agreement(after) > 0.9 > agreement(before)
    assert imitate(before, [Step(np.zeros((1, 3)), np.ones(1, dtype=bool), 0)]) == before  # there was no choice


@pytest.mark.parametrize("seed", [0, 1])
def test_a_network_learns_by_rewards_alone(seed: int) -> None:
    def play(scorer: Scorer, iteration: int) -> list[Episode]:
        episodes = []
        for rollout in range(4):
            draws = np.random.default_rng((seed, iteration, rollout))
            steps, rewards = [], []
            for time, (actions, mask) in enumerate(situations(1000 * seed + iteration, 20)):
                action = scorer.choose(actions, mask, draws)
                steps.append(Step(actions, mask, action, float(time)))
                rewards.append(float(actions[action, 1]))
            episodes.append(Episode(steps, np.cumsum(rewards[::-1])[::-1].tolist()))
        return episodes

    before = fresh(3, seed)
    assert agreement(improve(before, play, 150, rate=0.03)) > 0.8 > agreement(before)
