"""Delay-adaptive asynchronous SGD that knows nothing of the delays beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from laconic.registry import technique
from laconic.theory import delay_rates as rates
from laconic.theory.delayed.orders import Curvature, iterations
from laconic.theory.values import A_BOUND, Bound, Problem, require


@technique("theory_aviv_2021", axis="theory", paper="Aviv, Hakimi, Schuster, Levy, ICML 2021", why_no_word=A_BOUND)
def bound(problem: Problem, *, epsilon: float, tau_avg: float, curvature: Curvature = "convex") -> Bound:
    """Bound the iterations of SGD whose rate shrinks with the delays seen: the average delay counts, not the largest.

    The survey says strongly convex, the paper (as recalled) smooth convex on a bounded domain: both are given, by
    `curvature`. A term in the delays' variance, and all constants, are left out.
    """
    require(tau_avg >= 0, f"tau_avg={tau_avg:g} cannot be negative")
    require(curvature != "non-convex", "this guarantee is for convex objectives; take theory_koloskova_2022")
    return iterations(problem, epsilon, 1 + tau_avg, curvature)


def average(delays: Sequence[float]) -> float:
    """Return tau_avg, the mean delay of a trace."""
    require(len(delays) > 0, "a trace of delays needs at least one")
    return sum(delays) / len(delays)


def factors(delays: Iterable[float]) -> Iterator[float]:
    """Yield the share of the rate that each update of a trace gets, from the delays up to it alone."""
    cumulated = 0.0
    for updates, tau in enumerate(delays, start=1):
        cumulated += tau
        yield rates.aviv(tau, updates, cumulated)
