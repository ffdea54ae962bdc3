"""Asynchronous SGD measured in time, where it beats minibatch SGD whatever the delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from laconic.registry import technique
from laconic.theory import worker_throughput as paces
from laconic.theory.delayed.orders import CONSTANTS, Curvature, iterations
from laconic.theory.values import A_BOUND, Bound, Problem, counts


@technique(
    "theory_mishchenko_2022",
    axis="theory",
    paper="Mishchenko, Bach, Even, Woodworth, NeurIPS 2022",
    why_no_word=A_BOUND,
)
def bound(
    problem: Problem, *, epsilon: float, workers: int, curvature: Curvature | Literal["Lipschitz convex"] = "non-convex"
) -> Bound:
    """Bound the iterations of asynchronous SGD by the number m of workers: m gradients are in flight, however late.

    Smooth objectives need late gradients damped (`rates.mishchenko`); for Lipschitz convex ones a constant rate is
    enough. The strongly convex form is only indicated in the paper's summary; constants are 1.
    """
    counts(epsilon=epsilon, workers=workers)
    if curvature == "Lipschitz convex":
        terms = {"delay": problem.known("R0") ** 2 * problem.known("G2") * workers / epsilon**2}
        return Bound("iterations", terms, unknown=CONSTANTS, conditions=("E|g|^2 <= G^2 (given)",))
    return iterations(problem, epsilon, workers, curvature, rate=1 / (4 * problem.L * workers))


def seconds(
    problem: Problem, *, epsilon: float, speeds: Sequence[float], curvature: Curvature = "non-convex"
) -> tuple[float, float]:
    """Return the seconds to epsilon, asynchronous and minibatch; `speeds` are gradients per second.

    In gradients both need the same (m per step of minibatch SGD), so the ratio is m min(s) / sum(s), at most 1.
    """
    gradients = bound(problem, epsilon=epsilon, workers=len(speeds), curvature=curvature).total
    return gradients / paces.asynchronous(speeds), gradients / paces.minibatch(speeds)
