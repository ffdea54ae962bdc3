"""Process-wide state that each virtual worker needs for itself (random states, output): swapped with the baton."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from laconic.virtual import python_random

Swap = tuple[Callable[[], Any], Callable[[Any], Any]]
"""A function that reads such a state, and one that sets it."""


_numpy: Any = np.random  # its stubs leave these two functions out


def _cuda_state() -> Any:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _set_cuda_state(state: Any) -> None:
    if state is not None:
        torch.cuda.set_rng_state(state)


def _set_default_dtype(dtype: torch.dtype) -> None:
    if dtype != torch.get_default_dtype():  # setting it is slow, and it is nearly always the same
        torch.set_default_dtype(dtype)


def _surroundings() -> tuple[Any, ...]:
    return sys.argv, sys.stdout, sys.modules["__main__"]


def _set_surroundings(values: tuple[Any, ...]) -> None:
    sys.argv, sys.stdout, sys.modules["__main__"] = values


SWAPS: tuple[Swap, ...] = (
    (torch.default_generator.get_state, torch.default_generator.set_state),
    (_numpy.get_bit_generator, _numpy.set_bit_generator),  # the generator itself: copying its state is slow
    (python_random.state, python_random.restore),
    (torch.get_default_dtype, _set_default_dtype),
    (_surroundings, _set_surroundings),
    *(((_cuda_state, _set_cuda_state),) if torch.cuda.is_available() else ()),
)


class WorkerStates:
    """Each worker's copy of the process-wide state, set when the worker receives the baton."""

    def __init__(self, seed: int, threads: int) -> None:
        self._seed, self._threads = seed, threads
        self._saved: dict[int, tuple[Any, ...]] = {}
        self._running: int | None = None
        self._outside: tuple[Any, ...] = ()

    def switch_to(self, rank: int) -> None:
        """Save the running worker's state, and set that of the worker that runs next."""
        if rank == self._running:
            return
        if self._running is not None:
            self._saved[self._running] = _read()
        self._running = rank
        if rank in self._saved:
            _write(self._saved.pop(rank))

    def begin(self) -> None:
        """Begin a life of the running worker: with the process's own state and the seed, whatever was before."""
        _write(self._outside)
        torch.set_num_threads(self._threads)  # OpenMP asks each thread anew: it would start others beside every worker
        torch.default_generator.manual_seed(self._seed)  # torch.manual_seed would note a traceback per GPU library
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(self._seed)
        _numpy.set_bit_generator(np.random.MT19937())
        np.random.seed(self._seed)
        random.seed(self._seed)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the process's own state afterwards."""
        self._outside, threads = _read(), torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            _write(self._outside)


def _read() -> tuple[Any, ...]:
    return tuple([get() for get, _ in SWAPS])


def _write(values: tuple[Any, ...]) -> None:
    for (_, put), value in zip(SWAPS, values, strict=True):
        put(value)
