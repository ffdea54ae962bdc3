"""Sends: the messages of a program, as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

COPY, REDUCE = 0, 1

Integers = NDArray[np.int64]
Send = tuple[int, int, int, int, int]
"""A send: step, source, destination, chunk, and `COPY` or `REDUCE`."""


@dataclass(frozen=True, eq=False)
class Sends:
    """Sends as arrays of equal length, in the order of their steps; those of one step that are added to the same chunk
    of a rank are added in the order in which they stand here."""

    step: Integers
    source: Integers
    destination: Integers
    chunk: Integers
    op: Integers

    @classmethod
    def of(cls, rows: Iterable[Send] | ArrayLike) -> Sends:
        """Return sends from rows, sorted by step; steps are numbered anew, without gaps."""
        table = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows), dtype=np.int64).reshape(-1, 5)  # type: ignore[arg-type]
        table = table[np.argsort(table[:, 0], kind="stable")]
        steps = np.unique(table[:, 0], return_inverse=True)[1].reshape(-1)
        return cls(steps, *(np.ascontiguousarray(table[:, k]) for k in range(1, 5)))

    @property
    def table(self) -> Integers:
        """The sends as rows (step, source, destination, chunk, op)."""
        return np.stack([self.step, self.source, self.destination, self.chunk, self.op], axis=1)

    def __len__(self) -> int:
        return len(self.step)
