"""What is global in a process but must be each virtual worker's own: swapped with the baton."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Swap = tuple[Callable[[], Any], Callable[[Any], None]]
"""How to read such a thing, and how to put it back."""


def _cuda_state() -> Any:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _set_cuda_state(state: Any) -> None:
    if state is not None:
        torch.cuda.set_rng_state(state)


_numpy: Any = np.random  # its stubs leave these two functions out

SWAPS: tuple[Swap, ...] = (
    (torch.get_rng_state, torch.set_rng_state),
    (_cuda_state, _set_cuda_state),
    (_numpy.get_bit_generator, _numpy.set_bit_generator),  # the generator itself: copying its state is slow
    (random.getstate, random.setstate),
    (torch.get_default_dtype, torch.set_default_dtype),
    (lambda: sys.argv, lambda value: setattr(sys, "argv", value)),
    (lambda: sys.stdout, lambda value: setattr(sys, "stdout", value)),
    (lambda: sys.modules["__main__"], lambda value: sys.modules.__setitem__("__main__", value)),
)


class WorkerStates:
    """Each worker begins with the process's own state and fresh seeds."""

    def __init__(self, seed: int, threads: int) -> None:
        self._seed, self._threads = seed, threads
        self._saved: dict[int, tuple[Any, ...]] = {}
        self._running: int | None = None
        self._outside: tuple[Any, ...] = ()

    def switch_to(self, rank: int) -> None:
        if rank == self._running:
            return
        if self._running is not None:
            self._saved[self._running] = _read()
        self._running = rank
        if rank in self._saved:
            _write(self._saved.pop(rank))
            return
        _write(self._outside)
        torch.manual_seed(self._seed)
        _numpy.set_bit_generator(np.random.MT19937())
        np.random.seed(self._seed)
        random.seed(self._seed)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The process's own states come back afterwards."""
        self._outside, threads = _read(), torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            _write(self._outside)


def _read() -> tuple[Any, ...]:
    return tuple(get() for get, _ in SWAPS)


def _write(values: tuple[Any, ...]) -> None:
    for (_, put), value in zip(SWAPS, values, strict=True):
        put(value)
