"""Jobs of different speeds on GPUs of different types, as a linear program sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from laconic.errors import ClusterError


@dataclass(frozen=True)
class Shared:
    """Jobs, a row each, and types of GPU, a column each.

    - `speeds`: work a second of each job on each type; 0 where it cannot run there.
    - `workers`: the GPUs that each job takes at once.
    - `weights`: how much each job counts.
    - `gpus`: how many there are of each type.
    """

    speeds: np.ndarray
    workers: np.ndarray
    weights: np.ndarray
    gpus: np.ndarray

    def __post_init__(self) -> None:
        jobs, types = self.speeds.shape
        if self.workers.shape != (jobs,) or self.weights.shape != (jobs,) or self.gpus.shape != (types,):
            raise ClusterError(f"speeds are of {jobs} jobs on {types} types of GPU, and the other facts are not")

    @property
    def equal(self) -> np.ndarray:
        """The share of its time for which a job would be on each type, if all time were split by what there is."""
        split: np.ndarray = self.gpus / self.gpus.sum()
        return split

    @property
    def equal_speeds(self) -> np.ndarray:
        """What each job would do in a second by that split."""
        speeds: np.ndarray = self.speeds @ self.equal
        return speeds

    def blind(self) -> Shared:
        """Return the same jobs for somebody who takes all types for alike: one type, on which all are equally fast."""
        return replace(self, speeds=np.ones((len(self.workers), 1)), gpus=self.gpus.sum(keepdims=True))
