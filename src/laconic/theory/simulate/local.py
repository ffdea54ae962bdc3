"""Local SGD, K-AVG, minibatch SGD and cooperative SGD on a known objective, many runs at once.

Leading axes of `start`, such as (rates, 1, 1, dimension), are settings that are compared on the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from laconic.theory.problems import Array, Objective, noisy_gradient

Rate = Callable[[int], float | Array]  # of the step; an array broadcasts against (…, runs, workers, dimension)


def local_sgd(
    objective: Objective,
    start: Array,
    gaps: Iterable[int],
    rate: Rate,
    *,
    workers: int,
    runs: int,
    seed: int,
    limit: int | None = None,
) -> Iterator[Array]:
    """Yield x_t of every run and worker, from t = 0 on; workers average after each gap and where `limit` ends it.

    Equal gaps of K are K-AVG; gaps of 1 are BSP. What is yielded is changed in place by the next step.
    """
    generator = np.random.default_rng(seed)
    shape = (runs, workers, start.shape[-1])
    x = np.broadcast_to(start, np.broadcast_shapes(start.shape, shape)).copy()
    step = 0
    yield x
    for gap in gaps:
        end = step + gap if limit is None else min(limit, step + gap)
        while step < end:
            x -= rate(step) * noisy_gradient(objective, x, shape, generator)
            step += 1
            if step == end:
                x[:] = x.mean(axis=-2, keepdims=True)
            yield x


def minibatch_sgd(
    objective: Objective, start: Array, batches: Iterable[float], rate: Rate, *, runs: int, seed: int
) -> Iterator[Array]:
    """Yield x_r, (…, runs, dimension), of SGD with these total batches (over all workers); growing ones are CR-PSGD."""
    generator = np.random.default_rng(seed)
    shape = (runs, start.shape[-1])
    x = np.broadcast_to(start, np.broadcast_shapes(start.shape, shape)).copy()
    yield x
    for step, batch in enumerate(batches):
        x -= rate(step) * noisy_gradient(objective, x, shape, generator, batch)
        yield x


def cooperative_sgd(
    objective: Objective,
    start: Array,
    *,
    mixing: Array,
    period: int,
    workers: int,
    rate: float,
    steps: int,
    runs: int,
    seed: int,
) -> Iterator[tuple[Array, Array]]:
    """Yield (columns, gradients just taken) of A(tau, W, v): step, then mix; columns beyond `workers` only mix."""
    generator = np.random.default_rng(seed)
    x = np.broadcast_to(start, (runs, len(mixing), start.shape[-1])).copy()
    shape = (runs, workers, start.shape[-1])
    for step in range(1, steps + 1):
        gradients = noisy_gradient(objective, x[:, :workers], shape, generator)
        yield x, gradients
        x[:, :workers] -= rate * gradients
        if step % period == 0:
            x = np.einsum("ij,rjd->rid", mixing, x)


def last(states: Iterator[Array]) -> Array:
    """Return the last state of a simulation."""
    for state in states:
        end = state
    return end
