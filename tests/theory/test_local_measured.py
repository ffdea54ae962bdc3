"""Methods that average now and then, simulated on objectives whose constants are known, held against their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from laconic.theory.local import cooperative, haddadpour, spiridonoff, stich, yu, yu_jin, zhou_cong
from laconic.theory.problems import Array, LeastSquares, Objective, OneSided, Quadratic
from laconic.theory.simulate.local import cooperative_sgd, last, local_sgd, minibatch_sgd
from tests.theory.test_local_bounds import elastic

QUADRATIC = Quadratic.between(0.1, 1.0, 10, sigma=1.0)
START = np.full(10, 1.0)


def squared_gradient(objective: Objective, x: Array) -> Array:
    return np.asarray(np.sum(objective.gradient(x) ** 2, axis=-1))


@pytest.mark.technique("theory_zhou_cong_2018", check=3)
@pytest.mark.parametrize("period", [1, 4, 16])
def test_k_avg_stays_below_its_bound_in_every_run(period: int) -> None:
    """And not far below it: a bound of ten times as much would say nothing of the rate."""
    problem, workers, n = QUADRATIC.problem(START), 4, 100
    rate = zhou_cong.best_rate(problem, workers=workers, period=period, averagings=n)
    seen = np.zeros(20)
    gaps = [period] * n
    for t, x in enumerate(local_sgd(QUADRATIC, START, gaps, lambda t: rate, workers=workers, runs=20, seed=0)):
        if t % period == 0 and t < n * period:
            seen += squared_gradient(QUADRATIC, x.mean(axis=1)) / n
    total = zhou_cong.bound(problem, workers=workers, period=period, averagings=n, rate=rate).total
    assert np.all(seen < total) and np.all(total < 7 * seen)


@pytest.mark.long
@pytest.mark.technique("theory_stich_2019", check=3)
def test_the_weighted_average_is_below_its_bound_and_profits_from_every_worker() -> None:
    T, H, a = 2000, 4, 161.0
    start = START / math.sqrt(10)
    weights = (a + np.arange(T)) ** 2 / stich.weight(a, T)
    errors = {}
    for N in (1, 4, 16):
        average, G2 = np.zeros((100, 10)), 0.0
        states = local_sgd(QUADRATIC, start, [H] * (T // H), lambda t: 4 / (0.1 * (a + t)), workers=N, runs=100, seed=N)
        for weight, x in zip(weights, states, strict=False):
            average += weight * x.mean(axis=1)
            G2 = max(G2, float(squared_gradient(QUADRATIC, x).mean()) + QUADRATIC.sigma**2)
        errors[N] = float(QUADRATIC.value(average).mean())
        bound = stich.bound(QUADRATIC.problem(start, G2), workers=N, period=H, iterations=T, offset=a)
        assert errors[N] < bound.total
    assert 0.6 * 4 < errors[1] / errors[4] < 4 / 0.6
    assert 0.6 * 16 < errors[1] / errors[16] < 16 / 0.6


@pytest.mark.long
@pytest.mark.technique("theory_yu_2019", check=3)
@pytest.mark.parametrize("N", [1, 4, 16])
def test_pr_sgd_stays_below_its_bound(N: int) -> None:
    T = 4096
    bare = QUADRATIC.problem(START)
    rate, period = yu.recommended(bare, workers=N, iterations=T)
    period = max(period, 2)
    seen, G2 = 0.0, 0.0
    states = local_sgd(QUADRATIC, START, [period] * (T // period), lambda t: rate, workers=N, runs=20, seed=N)
    for t, x in enumerate(states):
        if t < T:
            seen += float(squared_gradient(QUADRATIC, x.mean(axis=1)).mean()) / T
            G2 = max(G2, float(squared_gradient(QUADRATIC, x).mean()) + QUADRATIC.sigma**2)
    assert seen < yu.bound(QUADRATIC.problem(START, G2), workers=N, period=period, iterations=T, rate=rate).total


@pytest.mark.long
@pytest.mark.technique("theory_haddadpour_2019", check=3)
def test_under_pl_the_recommended_period_costs_less_than_twice_the_error() -> None:
    objective = LeastSquares.of_rank(0.5, 1.0, rank=6, dimension=10, sigma=1.0)
    start, N, T = np.full(10, 0.25), 4, 4000
    assert np.linalg.eigvalsh(objective.hessian)[0] < 1e-12  # flat somewhere: not strongly convex
    problem = objective.problem(start)
    period = haddadpour.largest_period(problem, workers=N, iterations=T)
    assert period > 8

    def error(tau: int) -> float:
        a = haddadpour.offset(problem, workers=N, period=tau)
        gaps = [tau] * math.ceil(T / tau)
        rate = 4 / problem.known("mu")
        states = local_sgd(objective, start, gaps, lambda t: rate / (t + a), workers=N, runs=100, seed=1, limit=T)
        found = float(objective.value(last(states).mean(axis=1)).mean())
        assert found < haddadpour.bound(problem, workers=N, period=tau, iterations=T).total
        return found

    assert error(period) < 2 * error(1)


@pytest.fixture(scope="module")
def growing_batches() -> dict[float, float]:
    """The error after 10^5 gradients on each of 4 workers, by growth; 1 is BSP with a falling rate, its best form."""
    objective, start, N, T = Quadratic.between(0.1, 1.0, 5, sigma=1.0), np.ones(5), 4, 10**5
    rate, growth = yu_jin.recommended(objective.problem(start))
    found = {}
    for rho in (growth, 1.5, 3.0):
        batches = [N * batch for batch in yu_jin.schedule(T, rho)]
        end = last(minibatch_sgd(objective, start, batches, lambda t: rate, runs=100, seed=0))
        found[rho] = float(objective.value(end).mean())
    fixed = minibatch_sgd(objective, start, (N for _ in range(T)), lambda t: 20 / (t + 20), runs=100, seed=0)
    found[1.0] = float(objective.value(last(fixed)).mean())
    return found


@pytest.mark.long
@pytest.mark.technique("theory_yu_jin_2019", check=2)
def test_growing_batches_end_as_well_as_bsp_in_a_tenth_of_its_rounds(growing_batches: dict[float, float]) -> None:
    problem = Quadratic.between(0.1, 1.0, 5, sigma=1.0).problem(np.ones(5))
    rate, growth = yu_jin.recommended(problem)
    assert growing_batches[growth] < 3 * growing_batches[1.0]
    assert len(yu_jin.schedule(10**5, growth)) <= 10**5 / 10
    assert growing_batches[growth] < yu_jin.bound(problem, workers=4, samples=10**5, rate=rate, growth=growth).total


@pytest.mark.long
@pytest.mark.technique("theory_yu_jin_2019", check=3)
def test_batches_that_grow_too_fast_are_flagged_and_end_worse(growing_batches: dict[float, float]) -> None:
    problem = Quadratic.between(0.1, 1.0, 5, sigma=1.0).problem(np.ones(5))
    rate, growth = yu_jin.recommended(problem)
    for fast in (1.5, 3.0):
        assert yu_jin.bound(problem, workers=4, samples=10**5, rate=rate, growth=fast).warnings
        assert growing_batches[fast] > 2 * growing_batches[growth]


def best_error(objective: Objective, start: Array, rates: Array, workers: int, runs: int, K: int, R: int) -> float:
    """Local SGD's mean final error at the best of these constant rates; K = 0 is minibatch SGD of as many samples."""
    begin = np.broadcast_to(start, (len(rates), 1, 1, len(start)))
    with np.errstate(over="ignore", invalid="ignore"):
        if K:
            steps = rates[:, None, None, None]
            x = last(local_sgd(objective, begin, [K] * R, lambda t: steps, workers=workers, runs=runs, seed=K))[:, :, 0]
        else:
            batches = [4096 * workers / R] * R
            x = last(minibatch_sgd(objective, begin[:, 0], batches, lambda t: rates[:, None, None], runs=runs, seed=R))
        errors = objective.value(x).mean(axis=1)
    return float(np.nanmin(errors))


@pytest.mark.long
@pytest.mark.technique("theory_woodworth_2020", check=3)
def test_local_sgd_is_not_worse_on_a_quadratic_and_can_be_on_a_one_sided_one() -> None:
    """Not above, to the tenth that 300 runs resolve."""
    quadratic, start = Quadratic.between(0.05, 1.0, 3, sigma=1.0), np.full(3, 3.0)
    rates = 2.0 ** np.arange(-8, 2)
    for K in (1, 8, 64, 512, 4096):
        local = best_error(quadratic, start, rates[1:4], 4, 300, K, 4096 // K)
        assert local <= 1.1 * best_error(quadratic, start, rates, 4, 300, 0, 4096 // K)
    one_sided, start = OneSided(0.05, 1.0, sigma=1.0), np.full(4, -0.5)
    local = best_error(one_sided, start, 2.0 ** np.arange(-8, -3), 256, 8, 8, 512)
    assert local > 1.5 * best_error(one_sided, start, rates, 256, 64, 0, 512)


def error_of(objective: OneSided, gaps: Iterable[int], T: int, runs: int = 10) -> float:
    start = np.full(10, -1.0)
    problem = objective.problem(start)
    rate = lambda t: spiridonoff.rate(problem, t)  # noqa: E731
    states = local_sgd(objective, start, gaps, rate, workers=16, runs=runs, seed=3, limit=T)
    return float(objective.value(last(states).mean(axis=1)).mean())


@pytest.mark.long
@pytest.mark.technique("theory_spiridonoff_2021", check=2)
def test_as_many_rounds_as_workers_are_enough_and_their_root_is_not() -> None:
    objective, T = OneSided(0.5, 1.0, sigma=1.0), 4096
    bsp = error_of(objective, [1] * T, T, runs=20)
    assert error_of(objective, spiridonoff.gaps(T, 16), T, runs=20) < 2 * bsp
    assert error_of(objective, spiridonoff.gaps(T, 4), T, runs=20) > 1.5 * bsp


def test_growing_gaps_help_where_noise_fades_with_the_gradient_and_cost_little_elsewhere() -> None:
    """With noise that grows with the gradient, early rounds decide; with constant noise equal gaps are a bit better."""
    T, R = 1024, 16
    growing, equal = spiridonoff.gaps(T, R), [T // R] * R
    fading = OneSided(0.5, 1.0, sigma=1.0, growth=10.0)
    assert error_of(fading, growing, T) < 0.5 * error_of(fading, equal, T)
    constant = OneSided(0.5, 1.0, sigma=1.0)
    assert 1.0 < error_of(constant, growing, T) / error_of(constant, equal, T) < 1.2


@pytest.mark.long
@pytest.mark.technique("cooperative_sgd", check=3)
@pytest.mark.parametrize(
    ("name", "mixing", "period", "auxiliary"),
    [
        ("local", np.full((8, 8), 1 / 8), 8, 0),
        ("ring", np.eye(8) / 3 + (np.roll(np.eye(8), 1, 0) + np.roll(np.eye(8), -1, 0)) / 3, 2, 0),
        ("elastic", elastic(8, 0.2), 4, 1),
    ],
)
def test_the_mean_of_all_columns_moves_by_the_mean_gradient_and_stays_below_the_bound(
    name: str, mixing: Array, period: int, auxiliary: int
) -> None:
    m, K, eta = 8, 2000, 0.02
    effective = m * eta / (m + auxiliary)
    seen, before = 0.0, None
    states = cooperative_sgd(
        QUADRATIC, START, mixing=mixing, period=period, workers=m, rate=eta, steps=K, runs=20, seed=5
    )
    for x, gradients in states:
        u = x.mean(axis=1)
        if before is not None:
            np.testing.assert_allclose(u, before, atol=1e-6)
        before = u - effective * gradients.mean(axis=1)
        seen += float(squared_gradient(QUADRATIC, u).mean()) / K
    bound = cooperative.bound(
        QUADRATIC.problem(START),
        workers=m,
        period=period,
        iterations=K,
        rate=effective,
        mixing=cooperative.zeta(mixing),
        auxiliary=auxiliary,
    )
    assert seen < bound.total
