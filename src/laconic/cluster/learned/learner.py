"""How the scorer learns: by imitation of decisions, and by policy gradients over episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from laconic.cluster.learned.scorer import HIDDEN, Episode, Scorer, Step

if TYPE_CHECKING:
    from torch import Tensor

Rollouts = Callable[[Scorer, int], Sequence[Episode]]
"""Plays several episodes from one beginning, whose actions are drawn, for the iteration of a number."""


def imitate(scorer: Scorer, steps: Sequence[Step], rounds: int = 60, rate: float = 0.01) -> Scorer:
    """Return the network after it has learned to decide as somebody did: the likelihood of these actions is raised.

    - `scorer`: the network before.
    - `steps`: decisions.
    - `rounds`: passes over all of them.
    - `rate`: of Adam.
    """
    return climb(scorer, steps, np.ones(len(steps)), rounds, rate, 0.0)


def improve(scorer: Scorer, rollouts: Rollouts, iterations: int, rate: float = 0.01, entropy: float = 0.01) -> Scorer:
    """Return the network after policy gradients: of episodes with one beginning, the actions whose returns are above
    the mean of all episodes at that time become likelier, the others less likely.

    The baseline of a decision is what episodes got on average from its time on, so that luck of the beginning does not
    count (as in Mao et al., SIGCOMM 2019). Every iteration is one step of Adam.

    - `scorer`: the network before.
    - `rollouts`: plays episodes.
    - `iterations`: how often.
    - `rate`: of Adam, which falls to nothing in the end.
    - `entropy`: the weight of the bonus for undecided distributions, against settling too soon.
    """
    memory: dict[str, Tensor] = {}
    for iteration in range(iterations):
        episodes = [episode for episode in rollouts(scorer, iteration) if episode.steps]
        gains = [_against_mean(episode, episodes) for episode in episodes]
        flat = np.concatenate(gains)
        steps = [step for episode in episodes for step in episode.steps]
        slower = rate * (1 - iteration / iterations)
        scorer = climb(scorer, steps, flat / (flat.std() + 1e-9), 1, slower, entropy, memory)
    return scorer


def _against_mean(episode: Episode, episodes: Sequence[Episode]) -> np.ndarray:
    times = np.array([step.time for step in episode.steps])
    means = np.mean([np.interp(times, [s.time for s in e.steps], e.returns) for e in episodes], axis=0)
    found: np.ndarray = np.asarray(episode.returns) - means
    return found


def climb(
    scorer: Scorer,
    steps: Sequence[Step],
    gains: np.ndarray,
    rounds: int,
    rate: float,
    entropy: float,
    memory: dict[str, Tensor] | None = None,
) -> Scorer:
    """Return the network after steps of Adam up the gradient of the gains times the actions' log-likelihoods.

    - `scorer`: the network before.
    - `steps`: decisions.
    - `gains`: what each was better than expected.
    - `rounds`: how many steps.
    - `rate`: of Adam.
    - `entropy`: the weight of the bonus for undecided distributions.
    - `memory`: of Adam, which is changed; none: it begins anew.
    """
    import torch

    kept = [i for i, step in enumerate(steps) if step.mask.sum() > 1]  # where there was a choice
    if not kept:
        return scorer
    steps, gains = [steps[i] for i in kept], gains[kept]
    width = max(len(step.mask) for step in steps)
    actions = torch.zeros(len(steps), width, scorer.features, dtype=torch.float64)
    mask = torch.zeros(len(steps), width, dtype=torch.bool)
    for i, step in enumerate(steps):
        actions[i, : len(step.mask)] = torch.from_numpy(step.actions)
        mask[i, : len(step.mask)] = torch.from_numpy(step.mask)
    taken = torch.tensor([step.action for step in steps])
    gain = torch.from_numpy(gains)
    weights = torch.tensor(scorer.weights, dtype=torch.float64, requires_grad=True)
    memory = {} if memory is None else memory
    for _ in range(rounds):
        cut = scorer.features * HIDDEN
        units = torch.relu(actions @ weights[:cut].view(scorer.features, HIDDEN) + weights[cut : cut + HIDDEN])
        scores = (units @ weights[cut + HIDDEN : -1] + weights[-1]).masked_fill(~mask, -1e9)
        logs = torch.log_softmax(scores, dim=1)
        spread = -(logs.exp() * logs.clamp(min=-50)).sum(dim=1).mean()
        value = (gain * logs.gather(1, taken[:, None])[:, 0]).mean() + entropy * spread
        (gradient,) = torch.autograd.grad(-value, weights)
        count = memory["count"] = memory.get("count", torch.zeros(())) + 1
        first = memory["first"] = 0.9 * memory.get("first", torch.zeros_like(gradient)) + 0.1 * gradient
        second = memory["second"] = 0.99 * memory.get("second", torch.zeros_like(gradient)) + 0.01 * gradient**2
        step_ = first / (1 - 0.9**count) / ((second / (1 - 0.99**count)).sqrt() + 1e-8)
        weights = (weights - rate * step_).detach().requires_grad_()
    return Scorer(scorer.features, tuple(weights.tolist()))
