"""Delays and bandwidths between the devices of a wide-area network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DeviceLinks:
    """What it takes to send from any device to any other; the diagonals count for nothing.

    - `delay_seconds`: of the first byte.
    - `bits_per_second`: of all that follow.
    """

    delay_seconds: Matrix
    bits_per_second: Matrix

    def __post_init__(self) -> None:
        shape = self.delay_seconds.shape
        if len(shape) != 2 or shape[0] != shape[1] or self.bits_per_second.shape != shape:
            raise LaconicError(f"delays and bandwidths are square matrices of the same devices, not {shape}")
        off = ~np.eye(shape[0], dtype=bool)
        if (self.delay_seconds[off] < 0).any() or (self.bits_per_second[off] <= 0).any():
            raise LaconicError("a link has a delay of 0 s or more and a bandwidth above 0 bits a second")
        for matrix in (self.delay_seconds, self.bits_per_second):
            if not np.array_equal(matrix[off], matrix.T[off]):
                raise LaconicError("a link is as slow in one direction as in the other: give symmetric matrices")

    @property
    def size(self) -> int:
        return len(self.delay_seconds)

    @classmethod
    def between(cls, regions: Sequence[str], links: Mapping[tuple[str, str], tuple[float, float]]) -> DeviceLinks:
        """Return the links of devices of which only the region matters.

        - `regions`: each device's.
        - `links`: delay in seconds and bits a second between two regions, in either order, and within one.
        """
        pairs = [[links[a, b] if (a, b) in links else links[b, a] for b in regions] for a in regions]
        both = np.array(pairs, dtype=float)
        return cls(both[..., 0], both[..., 1])

    def seconds(self, nbytes: float) -> Matrix:
        """Return the time in which so many bytes arrive, for each pair of devices; 0 on the diagonal."""
        found = self.delay_seconds + 8 * nbytes / self.bits_per_second
        np.fill_diagonal(found, 0.0)
        return found

    def classes(self) -> list[int]:
        """Return a number for each device, equal for those that could change places without any difference."""
        found: list[int] = []
        examples: list[int] = []
        for device in range(self.size):
            like = next((k for k, other in enumerate(examples) if self._interchangeable(device, other)), None)
            if like is None:
                like = len(examples)
                examples.append(device)
            found.append(like)
        return found

    def _interchangeable(self, a: int, b: int) -> bool:
        others = np.ones(self.size, dtype=bool)
        others[[a, b]] = False
        return all(
            np.array_equal(matrix[a, others], matrix[b, others])
            for matrix in (self.delay_seconds, self.bits_per_second)
        )
