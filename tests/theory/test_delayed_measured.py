"""Late gradients, simulated on objectives whose constants are known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from laconic.theory import delay_rates as rates
from laconic.theory.delayed import aviv, cohen
from laconic.theory.problems import AbsoluteLoss, Array, Objective, Quadratic
from laconic.theory.simulate.arrivals import Integers, arrivals, delays, late_by, reads
from laconic.theory.simulate.delayed import State, delayed_sgd
from laconic.theory.simulate.local import minibatch_sgd


def steps_until(reached: Iterator[Array]) -> Array:
    """The first step at which each setting's measure is reached; infinite where never."""
    first: Array | None = None
    for step, now in enumerate(reached, start=1):
        first = np.full(now.shape, np.inf) if first is None else first
        first[(first == np.inf) & now] = step
        if np.all(first < np.inf):
            break
    assert first is not None
    return first


def mean_gradient2(objective: Objective, states: Iterator[State], settings: int) -> Iterator[Array]:
    for state in states:
        yield np.sum(objective.gradient(state.x) ** 2, axis=1).reshape(settings, -1).mean(axis=1)


def test_always_busy_workers_are_late_by_as_many_as_there_are_others() -> None:
    """What the servers' traces must show too; here for the simulation itself."""
    for speeds in ([1.0] * 8, [1.0] * 7 + [0.01], list(np.geomspace(0.01, 1, 8))):
        read = reads(arrivals(speeds, 4000, runs=3, seed=1), 8)
        late = delays(read)
        assert np.all(late >= 0) and np.all(late.mean(axis=1) <= 7)
    assert late.max() > 100
    even = delays(reads(arrivals([1.0] * 8, 100, law="constant"), 8))
    assert np.all(even[0, 8:] == 7)


@pytest.mark.long
@pytest.mark.technique("theory_stich_karimireddy_2020", check=2)
def test_the_largest_stable_step_falls_as_one_over_the_delay() -> None:
    stable = []
    for tau in (1, 2, 4, 8, 16, 32, 64):
        scaled = np.linspace(0.25, 4, 151)
        with np.errstate(over="ignore", invalid="ignore"):
            for state in delayed_sgd(
                Quadratic((2.0,)),
                np.ones(1),
                late_by(tau, 400 * (tau + 1)),
                scaled[:, None] / (2.0 * tau),
                runs=len(scaled),
            ):
                end = np.abs(state.x[:, 0])
        stable.append(scaled[end < 1].max())
    assert max(stable) / min(stable) < 2
    assert min(stable) > 0.5 and max(stable) < 2


@pytest.mark.long
@pytest.mark.technique("theory_stich_karimireddy_2020", check=3)
def test_under_noise_delays_up_to_sigma2_over_epsilon_are_nearly_free() -> None:
    objective, start, epsilon, runs = Quadratic.between(0.1, 1.0, 10, sigma=1.0), np.ones(10), 0.02, 100
    grid = 2.0 ** np.arange(-7, -1.9, 0.5)
    best = {}
    for tau in (0, int(1.0 / (4 * epsilon))):
        with np.errstate(over="ignore", invalid="ignore"):
            states = delayed_sgd(
                objective, start, late_by(tau, 800), np.repeat(grid, runs)[:, None], runs=runs * len(grid), seed=tau
            )
            measures = mean_gradient2(objective, states, len(grid))
            best[tau] = steps_until(measure <= epsilon for measure in measures).min()
    assert best[12] < 2 * best[0] < np.inf


@pytest.mark.long
@pytest.mark.technique("theory_aviv_2021", check=3)
def test_one_very_late_gradient_does_not_slow_the_delay_adaptive_rate() -> None:
    objective, start, count = Quadratic.between(0.002, 1.0, 10, sigma=0.01), np.ones(10), 12_000
    trace = np.ones(count, dtype=np.int64)
    trace[1000] = 1000
    read, epsilon, base = late_by(trace, count), 1e-4 * float(objective.value(start)), 1 / 2.0

    def steps(rate: float, factors: Array | None) -> float:
        states = delayed_sgd(objective, start, read, rate, factors=factors, runs=10)
        reached = (objective.value(state.x).mean(keepdims=True) <= epsilon for state in states)
        return float(steps_until(reached)[0])

    adaptive = steps(base, np.array(list(aviv.factors(delays(read).tolist()))))
    assert 1000 < adaptive < count / 2  # the late gradient came on the way
    assert steps(base / (1 + 1000), None) >= 2 * adaptive


PICKY_START, PICKY_EPSILON = np.full(10, 10.0), 0.03


def picky(read: Integers, count: int, sigma: float = 0.05) -> Iterator[State]:
    objective = Quadratic.between(0.01, 1.0, 10, sigma=sigma)
    problem = objective.problem(PICKY_START)
    radius, rate = cohen.radius(problem, PICKY_EPSILON), cohen.rate(problem, PICKY_EPSILON)
    return delayed_sgd(objective, PICKY_START, read[:, :count], rate, radius=radius, runs=len(read), seed=4)


@pytest.mark.long
@pytest.mark.technique("theory_cohen_2021", check=1)
def test_picky_sgd_applies_only_what_was_computed_nearby() -> None:
    read = reads(arrivals([1.0] * 9 + [0.05], 3000, runs=5, seed=2), 10)
    radius, fresh, kinds = PICKY_EPSILON / 2, 0, set()
    for step, state in enumerate(picky(read, 3000)):
        assert np.all(state.distance[state.applied] <= radius)
        current = read[:, step] == step
        assert np.all(state.applied[current])
        fresh += int(current.sum())
        kinds.update(state.applied.tolist())
    assert fresh > 0 and kinds == {True, False}


@pytest.mark.technique("theory_cohen_2021", check=2)
def test_without_delays_picky_sgd_is_sgd() -> None:
    read = np.broadcast_to(late_by(0, 500), (5, 500))
    objective = Quadratic.between(0.01, 1.0, 10, sigma=0.05)
    rate = 1 / 4  # 1 / (4 beta), at a noise so small
    sgd = minibatch_sgd(objective, PICKY_START, [1] * 500, lambda t: rate, runs=5, seed=4)
    next(sgd)
    for ours, theirs in zip(picky(read, 500), sgd, strict=True):
        np.testing.assert_array_equal(ours.x, theirs)


@pytest.mark.long
@pytest.mark.technique("theory_cohen_2021", check=3)
def test_slow_workers_do_not_slow_picky_sgd_but_a_rate_tuned_to_them() -> None:
    objective, count, runs = Quadratic.between(0.01, 1.0, 10, sigma=0.05), 28_000, 5
    even, slow = (
        np.repeat(reads(arrivals(speeds, count, law="constant"), 20), runs, axis=0)
        for speeds in ([1.0] * 20, [1.0] * 18 + [0.01] * 2)
    )

    def steps(states: Iterator[State]) -> float:
        norms = (np.linalg.norm(objective.gradient(state.x), axis=1) for state in states)
        return float(np.median(steps_until(norm <= PICKY_EPSILON for norm in norms)))

    def asp(read: Integers) -> float:
        rate = 1 / (2 * (1 + delays(read).max()))
        return steps(delayed_sgd(objective, PICKY_START, read, rate, runs=runs, seed=4))

    with_slow, without, plain = steps(picky(slow, count)), steps(picky(even, count)), asp(even)
    assert np.argmax(delays(slow)[0] > 1000) < with_slow < 2 * without < np.inf  # slow gradients came on the way
    assert 3 * max(with_slow, plain) < count  # long enough to tell
    assert asp(slow) >= 3 * max(with_slow, plain)


@pytest.mark.long
@pytest.mark.technique("theory_koloskova_2022", check=3)
def test_with_one_slow_worker_the_adaptive_rule_needs_less_than_half_the_iterations() -> None:
    objective, workers, count = Quadratic.between(0.05, 1.0, 10, sigma=0.05), 8, 8000
    read = reads(arrivals([1.0] * 7 + [1 / 50], count, law="constant"), workers)
    late = delays(read)[0]
    assert late.max() > 300
    eta = 1 / (4 * workers)

    def steps(rate: float, factors: Array | None) -> float:
        states = delayed_sgd(objective, np.ones(10), read[0], rate, factors=factors, runs=20)
        return float(steps_until(measure <= 0.0005 for measure in mean_gradient2(objective, states, 1))[0])

    adaptive = steps(eta, np.array([rates.koloskova(tau, workers, eta, 1.0) for tau in late]))
    dropping = steps(eta, np.array([rates.koloskova(tau, workers, eta, 1.0, drop=True) for tau in late]))
    tuned = steps(1 / (4 * late.max()), None)
    assert 350 < adaptive < count / 2 and 2 * adaptive <= tuned  # the slow worker delivered on the way
    assert 2 * dropping <= tuned


@pytest.mark.long
@pytest.mark.technique("theory_mishchenko_2022", check=3)
def test_adversarial_delays_leave_a_lipschitz_objective_cold() -> None:
    """Eight workers; one at a time delivers 500 late while the others go on, the same rate in all cases."""
    objective, start, m, K = AbsoluteLoss(sigma=1.0), np.ones(10), 8, 20_000
    rate = float(np.linalg.norm(start)) / np.sqrt(2 * m * K)
    order = np.empty((1, K), dtype=np.int64)
    for step in range(K):
        victim, place = (step // 501) % m, step % 501
        order[0, step] = victim if place == 500 else [w for w in range(m) if w != victim][place % (m - 1)]
    adversarial = reads(order, m)[0]
    assert delays(adversarial).max() >= 500

    def error(read: Integers) -> float:
        average = np.zeros((20, 10))
        for state in delayed_sgd(objective, start, read, rate, runs=20):
            average += state.x / K
        return float(objective.value(average).mean())

    assert error(adversarial) < 2 * error(late_by(0, K))
