"""Event-triggered gossip: silence while one has not moved far, and nothing lost by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sync.gossiping import DIMENSION, classify, draws, mixing_of, sgd, walk


def broadcasts(tier: Any) -> int:
    return int(tier.sync_state["broadcasts"])


def unsaid(tier: Any) -> tuple[float, int]:
    state = tier.sync_state
    return float((state["said.0"] - state["x.0"]).abs().sum()), broadcasts(tier)


def test_a_pull_is_towards_what_was_last_sent_and_little_is_not_sent() -> None:
    """The docstring's formula written out, with what each worker last sent; of 4 workers on a ring some are silent."""
    steps, (threshold, gain, decay) = 8, (0.5, 0.6, 0.05)
    seen = walk(
        f"detsgrad({threshold}, gain={gain}, decay={decay})", 4, steps, targets=draws(4, DIMENSION), look=unsaid
    )
    laplacian = np.eye(4) - mixing_of("detsgrad", 4).at(0)
    x = sent = np.zeros((4, DIMENSION))
    counts = np.zeros(4, dtype=int)
    for step in range(steps):
        fade, following = (1 / (decay * k + 1) for k in (step, step + 1))
        x = x - gain * (decay * step + 1) ** -0.1 * laplacian @ sent - 0.1 * fade * seen.gradients[step]
        np.testing.assert_allclose(seen.x[step + 1], x, atol=1e-12)
        speaks = np.abs(x - sent).sum(axis=1) > threshold * DIMENSION * 0.1 * following
        sent, counts = np.where(speaks[:, None], x, sent), counts + speaks
        assert [count for _, count in seen.seen[step]] == counts.tolist()
    assert 0 < counts.min() <= counts.max() < steps
    assert seen.sent_bytes == [2 * 8 * DIMENSION * count for count in counts.tolist()]


@pytest.mark.long
@pytest.mark.technique("detsgrad", check=1)
def test_without_a_threshold_everything_is_sent() -> None:
    seen = walk("detsgrad(0, gain=0.6, decay=0.01)", 5, 20, targets=draws(5, DIMENSION), look=broadcasts)
    weights = mixing_of("detsgrad", 5).at(0)
    laplacian = np.eye(5) - weights
    for step in range(20):
        beta, fade = 0.6 * (0.01 * step + 1) ** -0.1, 1 / (0.01 * step + 1)
        expected = seen.x[step] - beta * laplacian @ seen.x[step] - 0.1 * fade * seen.gradients[step]
        np.testing.assert_allclose(seen.x[step + 1], expected, atol=1e-12)
    assert seen.seen[-1] == [20] * 5


@pytest.mark.long
@pytest.mark.technique("detsgrad", check=2)
def test_nobody_strays_unsaid_beyond_the_threshold() -> None:
    seen = walk("detsgrad(0.5, decay=0.01)", 5, 60, targets=draws(5, DIMENSION), look=unsaid)
    silent = 0
    for step, row in enumerate(seen.seen):
        allowed = 0.5 * DIMENSION * 0.1 / (0.01 * (step + 1) + 1)
        assert all(distance <= allowed for distance, _ in row)
        silent += sum(distance > 0 for distance, _ in row)
    assert 0 < silent < 300  # some spoke, some did not
    sent = [count for _, count in seen.seen[-1]]
    assert seen.sent_bytes == [2 * 8 * DIMENSION * count for count in sent]


@pytest.mark.long
@pytest.mark.technique("detsgrad", check=3)
def test_a_class_that_one_never_saw_is_learnt_from_neighbours_with_far_fewer_broadcasts() -> None:
    parts = [[c for c in range(10) if c != rank] for rank in range(5)]
    always = classify("detsgrad(0, decay=0.01)", parts, 300, sgd(0.5), broadcasts)
    seldom = classify("detsgrad(decay=0.01)", parts, 300, sgd(0.5), broadcasts)
    assert [end.seen for end in always] == [300] * 5
    assert sum(end.seen for end in seldom) <= 0.6 * 5 * 300
    for often, rarely in zip(always, seldom, strict=True):
        assert rarely.accuracy >= often.accuracy - 1
