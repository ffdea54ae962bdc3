"""How many microbatches each of several unequal pipelines gets, so that all end at about the same time."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.errors import LaconicError


def distribute_batch(seconds: Sequence[float], microbatches: int) -> tuple[int, ...]:
    """Return whole numbers of microbatches, at least one each, whose products with the times differ least: their
    variance is minimal.

    Each pipeline first gets the whole part of its share by speed. The rest, and what other roundings would give, is
    moved one at a time as long as the variance falls; the variance is convex, so that no other division is better than
    one that no move of one microbatch improves.

    - `seconds`: of each pipeline for a microbatch.
    - `microbatches`: in all.
    """
    if microbatches < len(seconds):
        raise LaconicError(
            f"{microbatches} microbatches cannot keep {len(seconds)} pipelines busy: make microbatches smaller, or the "
            "batch larger"
        )
    speed = sum(1 / each for each in seconds)
    counts = [max(1, int(microbatches / (each * speed))) for each in seconds]
    while sum(counts) != microbatches:
        step = 1 if sum(counts) < microbatches else -1
        able = [k for k, count in enumerate(counts) if count + step >= 1]
        best = min(able, key=lambda k: _variance(seconds, [c + step * (i == k) for i, c in enumerate(counts)]))
        counts[best] += step
    while True:
        trials = [
            [c + (i == to) - (i == source) for i, c in enumerate(counts)]
            for source in range(len(counts))
            for to in range(len(counts))
            if source != to and counts[source] > 1
        ]
        best_trial = min(trials, key=lambda trial: _variance(seconds, trial), default=counts)
        if _variance(seconds, best_trial) >= _variance(seconds, counts) - 1e-15:
            return tuple(counts)
        counts = best_trial


def _variance(seconds: Sequence[float], counts: Sequence[int]) -> float:
    times = [each * count for each, count in zip(seconds, counts, strict=True)]
    mean = sum(times) / len(times)
    return sum((time - mean) ** 2 for time in times) / len(times)
