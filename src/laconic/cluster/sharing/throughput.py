"""How fast a job runs alone on a part of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.errors import ClusterError


@dataclass(frozen=True)
class Throughput:
    """A profile of one job alone: its rate on growing shares of a GPU's multiprocessors, which is concave and flat
    beyond a knee; between the measured shares it is linear, and below the first proportional.

    - `shares`: in ascending order, the last at most 1.
    - `rates`: at each, in any unit.
    """

    shares: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.rates) or not self.shares:
            raise ClusterError("a throughput profile has one rate for each share; give as many of both")
        x, y = np.array((0.0, *self.shares)), np.array((0.0, *self.rates))
        if np.any(np.diff(x) <= 0) or x[-1] > 1:
            raise ClusterError("the shares of a throughput profile ascend, above 0 and up to 1 at most")
        slopes = np.diff(y) / np.diff(x)
        if np.any(slopes < 0) or np.any(np.diff(slopes) > 1e-9 * max(float(slopes[0]), 1e-300)):
            raise ClusterError("a throughput profile rises ever more slowly, or stays; this one does not")

    @staticmethod
    def knee(share: float, rate: float = 1.0) -> Throughput:
        """Return the profile of a job that keeps so large a share of a GPU busy, and gains nothing from more.

        - `share`: where its rate stops rising.
        - `rate`: from there on.
        """
        return Throughput((share,), (rate,))

    def rate(self, share: float) -> float:
        """Return the rate alone on a share.

        - `share`: of the GPU, from 0 to 1.
        """
        return float(np.interp(share, (0.0, *self.shares), (0.0, *self.rates)))
