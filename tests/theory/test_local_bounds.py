"""Calculators of methods that average now and then: what their formulas must show, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.theory.local import cooperative, haddadpour, spiridonoff, stich, woodworth, yu, yu_jin, zhou_cong
from laconic.theory.values import Problem

PROBLEM = Problem(L=1.0, sigma2=1.0, mu=0.1, G2=2.0, F0=1.0, R0=2.0)


def test_a_constant_that_is_missing_or_senseless_is_named() -> None:
    with pytest.raises(LaconicError, match=r"it needs mu, strong convexity or the PL constant \(--mu\); give it"):
        stich.bound(replace(PROBLEM, mu=None), workers=1, period=1, iterations=10)
    with pytest.raises(LaconicError, match=r"mu=2\.0 cannot exceed the smoothness L=1\.0"):
        replace(PROBLEM, mu=2.0)
    with pytest.raises(LaconicError, match="sigma2=-1 cannot be negative"):
        replace(PROBLEM, sigma2=-1)
    with pytest.raises(LaconicError, match="workers=0 makes no sense"):
        stich.bound(PROBLEM, workers=0, period=1, iterations=10)


@pytest.mark.technique("theory_zhou_cong_2018", check=1)
def test_k_avg_improves_with_averagings_workers_and_batch_and_suffers_from_noise() -> None:
    base = {"workers": 4, "period": 4, "averagings": 100, "rate": 0.05, "batch": 2}
    total = zhou_cong.bound(PROBLEM, **base).total  # type: ignore[arg-type]
    for name in ("averagings", "workers", "batch"):
        assert zhou_cong.bound(PROBLEM, **base | {name: 2 * base[name]}).total < total  # type: ignore[arg-type]
    assert zhou_cong.bound(replace(PROBLEM, sigma2=2.0), **base).total > total  # type: ignore[arg-type]
    for period in (1, 2, 4, 16):
        high = zhou_cong.largest_rate(PROBLEM, period=period)
        zhou_cong.bound(PROBLEM, workers=4, period=period, averagings=10, rate=high)
        with pytest.raises(LaconicError, match=r"breaks 1 - d >= .* take a rate of at most"):
            zhou_cong.bound(PROBLEM, workers=4, period=period, averagings=10, rate=1.01 * high)


@pytest.mark.technique("theory_zhou_cong_2018", check=2)
def test_k_avg_prefers_local_steps_when_there_is_far_to_go() -> None:
    best = {
        gap: zhou_cong.best_period(replace(PROBLEM, F0=gap), workers=8, steps=10_000, rate=0.01)
        for gap in (1e-6, 1e-3, 1.0, 10.0, 100.0)
    }
    assert best[1e-6] == 1
    assert best[100.0] > 1
    assert list(best.values()) == sorted(best.values())


def test_k_avg_needs_as_many_averagings_as_bring_the_bound_to_epsilon() -> None:
    n = zhou_cong.averagings_to(0.1, PROBLEM, workers=8, period=4, rate=0.02)
    assert zhou_cong.bound(PROBLEM, workers=8, period=4, averagings=n, rate=0.02).total <= 0.1
    assert zhou_cong.bound(PROBLEM, workers=8, period=4, averagings=n - 1, rate=0.02).total > 0.1
    with pytest.raises(LaconicError, match="noise alone keeps the bound at"):
        zhou_cong.averagings_to(1e-4, PROBLEM, workers=8, period=4, rate=0.02)


@pytest.mark.technique("theory_stich_2019", check=1)
def test_local_steps_are_free_for_long_trainings_and_the_period_grows_as_a_root() -> None:
    shares = []
    for T in (10**4, 10**5, 10**6, 10**7):
        terms = stich.bound(PROBLEM, workers=4, period=8, iterations=T).terms
        shares.append(terms["drift"] / terms["noise"])
    assert np.all(np.diff(np.log10(shares)) < -0.9)

    def scaled(N: int, T: int) -> float:
        return stich.largest_period(PROBLEM, workers=N, iterations=T) / math.sqrt(T / N)

    along_T = [scaled(1, T) for T in (10**7, 10**8, 10**9)]
    along_N = [scaled(N, 10**9) for N in (1, 10, 100)]
    assert max(along_T) / min(along_T) < 1.1
    assert max(along_N) / min(along_N) < 1.1


@pytest.mark.technique("theory_stich_2019", check=2)
def test_workers_divide_the_noise_and_nothing_else() -> None:
    for N in (1, 4, 64):
        one = stich.bound(PROBLEM, workers=N, period=4, iterations=1000).terms
        two = stich.bound(PROBLEM, workers=2 * N, period=4, iterations=1000).terms
        assert two["noise"] == one["noise"] / 2
        assert (two["start"], two["drift"]) == (one["start"], one["drift"])


def test_the_smallest_training_reaches_epsilon_and_one_step_less_does_not() -> None:
    T = stich.iterations_to(0.01, PROBLEM, workers=4, period=4)
    assert stich.bound(PROBLEM, workers=4, period=4, iterations=T).total <= 0.01
    assert stich.bound(PROBLEM, workers=4, period=4, iterations=T - 1).total > 0.01
    with pytest.raises(LaconicError, match="must exceed max"):
        stich.bound(PROBLEM, workers=4, period=4, iterations=10, offset=160)
    assert stich.weight(3.0, 50) == pytest.approx(sum((3.0 + t) ** 2 for t in range(50)))


@pytest.mark.technique("theory_yu_2019", check=1)
def test_without_local_steps_pr_sgd_is_minibatch_sgd_and_a_bit() -> None:
    g, T, N = 0.01, 1000, 4
    found = yu.bound(PROBLEM, workers=N, period=1, iterations=T, rate=g)
    extra = 4 * g**2 * 2.0 * PROBLEM.L**2
    assert found.terms["drift"] <= extra * (1 + 1e-12)
    assert found.total == pytest.approx(2 * 1.0 / (g * T) + PROBLEM.L * g * 1.0 / N + extra)
    with pytest.raises(LaconicError, match="exceeds 1/L"):
        yu.bound(PROBLEM, workers=N, period=1, iterations=T, rate=1.5)


@pytest.mark.technique("theory_yu_2019", check=2)
def test_pr_sgds_choice_keeps_all_terms_of_one_order() -> None:
    for N in (1, 2, 4, 16):
        for T in (10**4 * N**3, 10**6 * N**3, 10**8 * N**3, 16 * N**3, 3 * N):
            rate, period = yu.recommended(PROBLEM, workers=N, iterations=T)
            exact = (T / N**3) ** 0.25
            assert period == max(1, math.floor(exact + 1e-9))
            terms = yu.bound(PROBLEM, workers=N, period=period, iterations=T, rate=rate).terms
            if exact >= 1:
                scaled = [term * math.sqrt(N * T) for term in terms.values()]
                assert scaled[0] == pytest.approx(2.0) and scaled[2] == pytest.approx(1.0)
                assert 8.0 / 4 <= scaled[1] <= 8.0 * (1 + 1e-9)
    T = yu.iterations_to(0.01, PROBLEM, workers=4)
    rate, period = yu.recommended(PROBLEM, workers=4, iterations=T)
    assert yu.bound(PROBLEM, workers=4, period=period, iterations=T, rate=rate).total <= 0.01


@pytest.mark.technique("theory_haddadpour_2019", check=1)
def test_under_pl_the_period_grows_with_the_two_thirds_power() -> None:
    def scaled(N: int, T: int) -> float:
        return haddadpour.largest_period(PROBLEM, workers=N, iterations=T) * N ** (1 / 3) / T ** (2 / 3)

    along_T = [scaled(16, T) for T in (10**7, 10**8, 10**9)]
    along_N = [scaled(N, 10**9) for N in (16, 160, 1600)]
    assert max(along_T) / min(along_T) < 1.1
    assert max(along_N) / min(along_N) < 1.1


@pytest.mark.technique("theory_haddadpour_2019", check=2)
def test_under_pl_fewer_rounds_are_enough_than_with_bounded_gradients() -> None:
    """By the orders of the table from N T = 1000 on; with the papers' constants, for longer trainings."""
    for N in (1, 4, 32, 256):
        for T in (1001, 10**5, 10**7):
            assert haddadpour.rounds(N, T) < stich.rounds(N, T)
    for N in (4, 16):
        T = 10**7
        ours = haddadpour.bound(
            PROBLEM, workers=N, period=haddadpour.largest_period(PROBLEM, workers=N, iterations=T), iterations=T
        )
        theirs = stich.bound(
            PROBLEM, workers=N, period=stich.largest_period(PROBLEM, workers=N, iterations=T), iterations=T
        )
        assert ours.rounds is not None and theirs.rounds is not None and ours.rounds < theirs.rounds


def test_adaptive_periods_grow_as_the_loss_falls() -> None:
    assert [haddadpour.next_period(4, 2.0, loss) for loss in (3.0, 2.0, 1.0, 0.1)] == [4, 4, 8, 80]


@pytest.mark.technique("theory_yu_jin_2019", check=1)
@pytest.mark.parametrize("growth", [1.05, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("first", [8, 32])
def test_growing_batches_stay_within_the_samples_in_as_many_rounds_as_the_logarithm_says(
    growth: float, first: int
) -> None:
    for samples in (first, 1000, 12_345, 10**6):
        batches = yu_jin.schedule(samples, growth, first)
        assert sum(batches) <= samples < sum(batches) + growth * batches[-1] + 1
        assert abs(len(batches) - yu_jin.closed_rounds(samples, growth, first)) <= 1


def test_too_fast_a_growth_is_flagged_and_what_cannot_grow_is_refused() -> None:
    limit = yu_jin.largest_growth(PROBLEM, 0.5)
    assert limit == pytest.approx(1 / 0.95)
    choice = {"workers": 4, "samples": 1000, "rate": 0.5}
    assert not yu_jin.bound(PROBLEM, growth=0.99 * limit, **choice).warnings  # type: ignore[arg-type]
    assert "exceeds 1/(1 - g mu)" in yu_jin.bound(PROBLEM, growth=1.01 * limit, **choice).warnings[0]  # type: ignore[arg-type]
    with pytest.raises(LaconicError, match="batches must grow"):
        yu_jin.schedule(100, 1.0)
    with pytest.raises(LaconicError, match="must be below 1/L"):
        yu_jin.bound(PROBLEM, workers=4, samples=100, rate=1.0, growth=1.1)
    with pytest.raises(LaconicError, match="must exceed workers"):
        yu_jin.catalyst_rounds(8, 8)
    T = yu_jin.iterations_to(0.01, PROBLEM, workers=4)
    assert yu_jin.rounds(4, T) < T / 10


@pytest.mark.technique("theory_woodworth_2020", check=1)
@pytest.mark.parametrize("N", [2, 16, 256])
@pytest.mark.parametrize("R", [10, 1000])
def test_local_overtakes_minibatch_where_the_printed_bounds_meet(N: int, R: int) -> None:
    problem = Problem(L=2.0, sigma2=9.0, R0=1.5)
    crossing = woodworth.crossover_period(problem, workers=N, rounds=R)
    periods = np.geomspace(crossing / 2, crossing * 2, 2001)
    lead = [
        woodworth.minibatch(problem, workers=N, period=K, rounds=R).total  # type: ignore[arg-type]
        - woodworth.bound(problem, workers=N, period=K, rounds=R).total  # type: ignore[arg-type]
        for K in periods
    ]
    assert periods[np.argmax(np.array(lead) > 0)] == pytest.approx(crossing, rel=0.01)
    below, above = max(1, int(crossing / 2)), int(crossing * 2)
    assert woodworth.best(problem, workers=N, period=above, rounds=R) != "minibatch SGD"
    assert woodworth.best(problem, workers=N, period=below, rounds=R) != "local SGD"
    rounds = woodworth.crossover_rounds(problem, workers=N, period=above)
    assert rounds > R
    assert woodworth.bound(problem, workers=N, period=above, rounds=1).unknown


@pytest.mark.technique("theory_woodworth_2020", check=2)
def test_without_noise_every_local_step_counts() -> None:
    problem = Problem(L=2.0, sigma2=0.0, R0=1.5)
    for K in (2, 10, 1000):
        for R in (1, 50):
            local = woodworth.bound(problem, workers=8, period=K, rounds=R).total
            assert local == pytest.approx(2.0 * 1.5**2 / (K * R))
            assert local < woodworth.minibatch(problem, workers=8, period=K, rounds=R).total


@pytest.mark.technique("theory_spiridonoff_2021", check=1)
def test_growing_gaps_grow_by_the_first_and_cover_the_training() -> None:
    for T, R in ((100, 10), (4096, 16), (10_000, 7), (12_345, 100), (5, 1)):
        gaps = spiridonoff.gaps(T, R)
        assert len(gaps) == R and sum(gaps) >= T
        assert gaps[0] == math.ceil(2 * T / R**2)
        assert all(gap - before == gaps[0] for before, gap in pairwise(gaps))
    with pytest.raises(LaconicError, match="more than growing gaps of 100 iterations can have"):
        spiridonoff.gaps(100, 20)
    ratios = [spiridonoff.ratio_to_ideal(PROBLEM, workers=16, rounds=R) for R in (4, 16, 64, 10**6)]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] == pytest.approx(1, abs=1e-3)


@pytest.mark.technique("cooperative_sgd", check=2)
def test_mixing_costs_only_what_it_leaves_apart() -> None:
    choice = {"workers": 8, "iterations": 10**6, "rate": 1e-4}

    def drift(period: int, mixing: float) -> float:
        return cooperative.bound(PROBLEM, period=period, mixing=mixing, **choice).terms["drift"]  # type: ignore[arg-type]

    plain = cooperative.zeta(np.full((8, 8), 1 / 8))
    assert plain == 0 and drift(1, plain) == 0
    by_mixing = [drift(4, zeta) for zeta in (0.0, 0.3, 0.6, 0.9)]
    by_period = [drift(period, 0.3) for period in (1, 2, 8, 32)]
    assert by_mixing == sorted(set(by_mixing)) and by_period == sorted(set(by_period))
    with pytest.raises(LaconicError, match=r"exceeds 1 for rate=0\.5"):
        cooperative.bound(PROBLEM, workers=8, period=4, iterations=10, rate=0.5)
    with pytest.raises(LaconicError, match="a connected network"):
        cooperative.bound(PROBLEM, workers=8, period=4, iterations=10, rate=0.01, mixing=1.0)


def test_zeta_of_known_matrices() -> None:
    ring = np.eye(8) / 3 + (np.roll(np.eye(8), 1, 0) + np.roll(np.eye(8), -1, 0)) / 3
    assert cooperative.zeta(ring) == pytest.approx((1 + 2 * math.cos(2 * math.pi / 8)) / 3)
    assert cooperative.zeta(elastic(8, 2 / 10)) == pytest.approx(8 / 10)
    assert cooperative.zeta([[1.0]]) == 0
    with pytest.raises(LaconicError, match="symmetric"):
        cooperative.zeta([[0.5, 0.5], [1.0, 0.0]])
    with pytest.raises(LaconicError, match="sum to 1"):
        cooperative.zeta([[0.5, 0.4], [0.4, 0.5]])


def test_the_largest_cooperative_period_makes_the_tables_rounds() -> None:
    for m in (4, 16):
        for K in (10**8, 10**10):
            tau = cooperative.largest_period(PROBLEM, workers=m, iterations=K)
            assert 0.5 < K / tau / cooperative.rounds(m, K) < 2
            assert cooperative.largest_period(PROBLEM, workers=m, iterations=K, mixing=0.8) < tau


def elastic(workers: int, alpha: float) -> np.ndarray:
    """EASGD's matrix: every worker is pulled towards one auxiliary model, and it towards them."""
    W = np.diag([1 - alpha] * workers + [1 - workers * alpha])
    W[:workers, workers] = W[workers, :workers] = alpha
    return W
