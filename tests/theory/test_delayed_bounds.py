"""Calculators of methods that apply late gradients, and the rules that say what a late gradient is worth."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.theory import delay_rates as rates
from laconic.theory.delayed import aviv, cohen, koloskova, mishchenko, stich_karimireddy
from laconic.theory.delayed.orders import Curvature
from laconic.theory.values import Problem

PROBLEM = Problem(L=2.0, sigma2=3.0, mu=0.1, G2=5.0, F0=1.5, R0=2.0)
CURVATURES: tuple[Curvature, ...] = ("non-convex", "convex", "strongly convex")


@pytest.mark.technique("theory_stich_karimireddy_2020", check=1)
def test_a_delay_is_a_lower_order_term_that_grows_linearly() -> None:
    epsilon = 0.01

    def total(tau: float) -> float:
        return stich_karimireddy.bound(PROBLEM, epsilon=epsilon, tau_max=tau).total

    sgd = 2.0 * 1.5 * (3.0 / epsilon**2 + 1 / epsilon)
    assert total(0) == pytest.approx(sgd)
    assert total(2e6) / total(1e6) == pytest.approx(2, rel=1e-3)
    free = stich_karimireddy.free_delay(PROBLEM, epsilon)
    assert free == pytest.approx(3.0 / epsilon, rel=0.01)
    assert total(free) == pytest.approx(2 * sgd, rel=0.01)
    for curvature in CURVATURES:
        free = stich_karimireddy.free_delay(PROBLEM, epsilon, curvature)
        terms = stich_karimireddy.bound(PROBLEM, epsilon=epsilon, tau_max=free, curvature=curvature).terms
        assert terms["noise"] == pytest.approx(terms["delay"])
    with pytest.raises(LaconicError, match="cannot be negative"):
        stich_karimireddy.bound(PROBLEM, epsilon=epsilon, tau_max=-1)


@pytest.mark.technique("theory_aviv_2021", check=1)
def test_the_rate_shrinks_with_the_cumulated_delay_and_needs_no_largest_delay() -> None:
    for tau in (0, 3, 50):
        factors = [rates.aviv(tau, updates=10, cumulated=cumulated) for cumulated in range(tau, 1000)]
        assert factors == sorted(factors, reverse=True) and factors[-1] < factors[0]
    trace = [1, 1, 1, 30, 1, 1, 1]
    whole = list(aviv.factors(trace))
    assert [list(aviv.factors(trace[:n]))[-1] for n in range(1, 8)] == whole  # what comes later is never asked for
    assert whole[3] == min(whole) == 1 / 31
    averages = [34 / 5, 35 / 6, 36 / 7]  # of all delays so far, which are larger than the last ones
    assert whole == pytest.approx([1 / 2, 1 / 2, 1 / 2, 1 / 31, *(1 / (1 + tau) for tau in averages)])


@pytest.mark.technique("theory_aviv_2021", check=2)
@pytest.mark.parametrize("curvature", ["convex", "strongly convex"])
def test_one_straggling_gradient_changes_the_prediction_by_less_than_a_tenth(curvature: Curvature) -> None:
    even = [1.0] * 10_000
    once = [*even[:5000], 1000.0, *even[5001:]]
    for sigma2 in (0.0, 3.0):
        problem = Problem(L=2.0, sigma2=sigma2, mu=0.1, F0=1.5, R0=2.0)

        def total(trace: list[float], problem: Problem = problem) -> float:
            average = aviv.average(trace)
            return aviv.bound(problem, epsilon=0.01, tau_avg=average, curvature=curvature).total

        assert total(even) < total(once) < 1.1 * total(even)
        tuned = stich_karimireddy.bound(problem, epsilon=0.01, tau_max=1000, curvature=curvature).total
        assert tuned > total(once)
    with pytest.raises(LaconicError, match="take theory_koloskova_2022"):
        aviv.bound(PROBLEM, epsilon=0.1, tau_avg=1, curvature="non-convex")


def test_picky_sgd_wants_the_norm_and_knows_its_radius() -> None:
    loose, tight = (cohen.bound(PROBLEM, epsilon=epsilon, tau_avg=9).terms for epsilon in (0.1, 0.05))
    assert tight["noise"] == pytest.approx(16 * loose["noise"]) and tight["delay"] == pytest.approx(4 * loose["delay"])
    convex = cohen.bound(PROBLEM, epsilon=0.1, tau_avg=9, convex=True).terms
    assert convex == aviv.bound(PROBLEM, epsilon=0.1, tau_avg=9).terms
    assert cohen.radius(PROBLEM, 0.1) == 0.025
    assert cohen.rate(Problem(L=2.0), 0.1) == 1 / 8


@pytest.mark.technique("theory_koloskova_2022", check=2)
def test_adaptive_is_never_above_constant_nor_that_above_the_largest_delays_bound() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        tau_avg, more = draw.exponential(20), draw.exponential(500)
        problem = Problem(L=draw.exponential(), sigma2=draw.exponential() * draw.integers(2), F0=draw.exponential())
        epsilon = draw.exponential()
        delays = {"tau_max": tau_avg + more, "tau_avg": tau_avg}
        adaptive = koloskova.bound(problem, epsilon=epsilon, **delays).total
        constant = koloskova.bound(problem, epsilon=epsilon, **delays, rule="constant").total
        largest = stich_karimireddy.bound(problem, epsilon=epsilon, tau_max=tau_avg + more).total
        assert adaptive <= constant * (1 + 1e-12) and constant <= largest * (1 + 1e-12)
        equal = {"tau_max": tau_avg, "tau_avg": tau_avg}
        assert koloskova.bound(problem, epsilon=epsilon, **equal, rule="constant").total == pytest.approx(adaptive)
        assert stich_karimireddy.bound(problem, epsilon=epsilon, tau_max=tau_avg).total == pytest.approx(adaptive)
    with pytest.raises(LaconicError, match="tau_avg=3 must lie between 0 and tau_max=2"):
        koloskova.bound(PROBLEM, epsilon=0.1, tau_max=2, tau_avg=3)


@pytest.mark.technique("theory_mishchenko_2022", check=1)
def test_asynchronous_sgd_is_never_slower_than_minibatch_sgd_whatever_the_speeds() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        speeds = draw.lognormal(sigma=2, size=draw.integers(1, 50)).tolist()
        for curvature in CURVATURES:
            ours, theirs = mishchenko.seconds(PROBLEM, epsilon=0.1, speeds=speeds, curvature=curvature)
            assert ours <= theirs * (1 + 1e-12)
    ours, theirs = mishchenko.seconds(PROBLEM, epsilon=0.1, speeds=[3.0] * 7)
    assert ours == pytest.approx(theirs)
    ours, theirs = mishchenko.seconds(PROBLEM, epsilon=0.1, speeds=[1.0, 1.0, 1.0, 0.2])
    assert ours / theirs == pytest.approx(4 * 0.2 / 3.2)
    assert koloskova.seconds(PROBLEM, epsilon=0.1, speeds=[1.0, 1.0, 1.0, 0.2]) == pytest.approx((ours, theirs))
    with pytest.raises(LaconicError, match="one number above 0 per worker"):
        mishchenko.seconds(PROBLEM, epsilon=0.1, speeds=[1.0, 0.0])


def test_lipschitz_convex_needs_no_smoothness_of_delays() -> None:
    one = mishchenko.bound(PROBLEM, epsilon=0.1, workers=1, curvature="Lipschitz convex")
    many = mishchenko.bound(PROBLEM, epsilon=0.1, workers=8, curvature="Lipschitz convex")
    assert many.total == pytest.approx(8 * one.total) and one.total == pytest.approx(4 * 5 / 0.01)


def test_every_rule_gives_a_factor_between_nothing_and_all_and_never_more_to_the_later() -> None:
    rules = {
        "constant": rates.constant,
        "inverse": rates.inverse_staleness,
        "damped": rates.damped,
        "koloskova": lambda tau: rates.koloskova(tau, concurrency=8, rate=0.1, L=2.0),
        "drop": lambda tau: rates.koloskova(tau, concurrency=8, rate=0.1, L=2.0, drop=True),
        "mishchenko": lambda tau: rates.mishchenko(tau, workers=8, rate=0.1, L=2.0),
        "aviv": lambda tau: rates.aviv(tau, updates=100, cumulated=1000),
    }
    for name, rule in rules.items():
        factors = [rule(tau) for tau in range(300)]
        assert factors[0] <= 1 and factors[-1] >= 0, name
        assert factors == sorted(factors, reverse=True), name
    assert [rates.inverse_staleness(tau) for tau in (0, 1, 4)] == [1, 1, 0.25]
    assert [rates.damped(tau) for tau in (0, 1, 4)] == [1, 0.5, 0.2]
    assert rules["koloskova"](8) == 1 and rules["koloskova"](100) == pytest.approx(1 / (4 * 2.0 * 100) / 0.1)
    assert rules["drop"](8) == 1 and rules["drop"](9) == 0
    assert rules["mishchenko"](16) == 1 and rules["mishchenko"](17) < 1
    for wrong in (lambda: rates.damped(-1), lambda: rates.aviv(5, 1, 3), lambda: rates.aviv(0, 0, 0)):
        with pytest.raises(LaconicError):
            wrong()
