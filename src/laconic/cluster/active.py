"""The numbers of the jobs that are there, for one of them and for all at once."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Active:
    """The jobs that were submitted and are not done, in the order of their numbers, which is that of their arrivals."""

    def __init__(self) -> None:
        self._there: set[int] = set()
        self._numbers = array("q")

    def __contains__(self, job: object) -> bool:
        return job in self._there

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._there)

    def add(self, job: int) -> None:
        """Let a job come.

        - `job`: its number.
        """
        self._there.add(job)
        insort(self._numbers, job)

    def remove(self, job: int) -> None:
        """Let a job go that is there.

        - `job`: its number.
        """
        self._there.remove(job)
        del self._numbers[bisect_left(self._numbers, job)]

    def as_array(self) -> NDArray[np.int64]:
        """Return the numbers of all."""
        return np.array(self._numbers)
