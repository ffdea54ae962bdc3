"""A genetic search for the GPUs of each host that each job gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESET, THINNED, REMOVED = (
    0.1,
    0.1,
    0.1,
)  # chances: of a job, that it is as it was, and that it loses; of each that it has
FLOOR = 1e-3  # of a speed-up: a job without GPUs counts little, but does count


@dataclass(frozen=True)
class Problem:
    """What is searched for: GPUs by job and host, the most urgent job first.

    - `present`: what each job has of each host now.
    - `capacity`: the GPUs of each host.
    - `most`: the GPUs that each job can use.
    - `speedups`: of each job, on one host and on several, with 0, 1, ... GPUs.
    - `moved`: what a job's speed-up is multiplied by where its GPUs change.
    - `exponent`: of the power mean of all speed-ups, which is to be large.
    """

    present: np.ndarray
    capacity: np.ndarray
    most: np.ndarray
    speedups: np.ndarray
    moved: np.ndarray
    exponent: float

    def values(self, states: np.ndarray) -> np.ndarray:
        """Return the power mean of each state."""
        gpus, hosts = states.sum(axis=2), np.count_nonzero(states, axis=2)
        each = self.speedups[np.arange(states.shape[1]), (hosts > 1).astype(np.intp), gpus]
        each = np.where((states != self.present).any(axis=2), each * self.moved, each) + FLOOR
        if self.exponent == 0:
            means = np.exp(np.log(each).mean(axis=1))
        else:
            means = (each**self.exponent).mean(axis=1) ** (1 / self.exponent)
        return np.asarray(means)

    def crossed(self, first: np.ndarray, second: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return two children of each pair: jobs up to some point from one parent, those behind it from the other."""
        jobs = self.present.shape[0]
        early = (np.arange(jobs) < rng.integers(jobs, size=(len(first), 1)))[:, :, None]
        return np.concatenate([np.where(early, first, second), np.where(early, second, first)])

    def mutated(self, states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return states in which some jobs are as they are now, some have lost GPUs, and some have gained free ones."""
        many, jobs, _ = states.shape
        chance = rng.random((2, many, jobs), dtype=np.float32)
        states = np.where((chance[0] < RESET)[:, :, None], self.present, states)
        rows = np.nonzero(chance[1] < THINNED)
        some = states[rows]
        some[rng.random(some.shape, dtype=np.float32) < REMOVED] = 0
        states[rows] = some
        there = states > 0
        free = states.sum(axis=1) < self.capacity
        any_job, one_there = 1 / jobs, 1 / np.maximum(there.sum(axis=1), 1)
        both = (any_job + one_there - any_job * one_there).astype(np.float32)
        drawn = rng.random(states.shape, dtype=np.float32)
        drawn += ~free[:, None, :]
        at = np.nonzero(drawn < np.where(there, both[:, None, :], np.float32(any_job)))
        least, most = states[at], self.capacity[at[2]]
        states[at] = least + (rng.random(len(least), dtype=np.float32) * (most - least + 1)).astype(states.dtype)
        return states

    def repaired(self, states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return states that can be carried out: at most one job of several hosts on each host, no job with more than
        it can use, no host with more than it has. The most urgent jobs keep theirs."""
        there = states > 0
        wide = there & (there.sum(axis=2, dtype=np.int16) > 1)[:, :, None]
        states[wide & (wide.cumsum(axis=1, dtype=np.int16) > 1)] = 0
        rows = np.nonzero(states.sum(axis=2) > self.most)
        if len(rows[0]):
            some = states[rows].astype(np.int64)
            order = rng.random(some.shape, dtype=np.float32).argsort(axis=1)
            mixed = np.minimum(np.take_along_axis(some, order, 1).cumsum(axis=1), self.most[rows[1]][:, None])
            np.put_along_axis(some, order, np.diff(mixed, axis=1, prepend=0), 1)
            states[rows] = some
        filled = np.minimum(states.cumsum(axis=1, dtype=np.int16), self.capacity[None, None].astype(np.int16))
        states[:, 0] = filled[:, 0]
        np.subtract(filled[:, 1:], filled[:, :-1], out=states[:, 1:], casting="unsafe")
        return states


def search(
    problem: Problem, states: np.ndarray, population: int, generations: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the best states that were found, the best first.

    - `problem`: what is searched for.
    - `states`: where to begin.
    - `population`: how many states are kept from a generation to the next.
    - `generations`: how many there are.
    - `rng`: of what is drawn.
    """
    states = problem.repaired(states.copy(), rng)
    values = problem.values(states)
    for _ in range(generations):
        one, other = rng.integers(len(states), size=(2, population))
        parents = states[np.where(values[one] >= values[other], one, other)]
        half = population // 2
        children = problem.crossed(parents[:half], parents[half : 2 * half], rng)
        children = problem.repaired(problem.mutated(children, rng), rng)
        states, values = np.concatenate([states, children]), np.concatenate([values, problem.values(children)])
        _, different = np.unique(-values, return_index=True)  # in descending order, of equals the oldest
        states, values = states[different[:population]], values[different[:population]]
    return states
