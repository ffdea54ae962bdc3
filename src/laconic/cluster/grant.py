"""What a policy gives to one job: slots, which are shares of devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


class Slot(NamedTuple):
    """A share of one device of one host."""

    host: int
    device: int
    share: float = 1.0


@dataclass(frozen=True)
class Grant:
    """The slots of a job, in order of hosts, and how it is to use them.

    - `slots`: a slot for each of its workers.
    - `batch`: samples of a step over all workers, where the policy sets it; 0: the job's own.
    - `clock`: the devices' clock rate, as a share of the default.
    - `circuits`: the pairs of racks that an optical switch joins for this job alone.
    """

    slots: tuple[Slot, ...]
    batch: int = 0
    clock: float = 1.0
    circuits: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(slots: Iterable[Slot], batch: int = 0, clock: float = 1.0) -> Grant:
        """Return a grant whose slots are put in order."""
        return Grant(tuple(sorted(slots)), batch, clock)

    @cached_property
    def gpus(self) -> float:
        """The GPUs of all slots together."""
        return sum(slot.share for slot in self.slots)

    @cached_property
    def devices(self) -> tuple[tuple[int, int], ...]:
        """The host and the device of each slot."""
        return tuple(slot[:2] for slot in self.slots)

    @cached_property
    def table(self) -> np.ndarray:
        """A row of host, device and share for each slot."""
        return np.array(self.slots, dtype=np.float64).reshape(-1, 3)

    @cached_property
    def by_host(self) -> tuple[tuple[int, int], ...]:
        """The hosts, each with how many of the slots it has."""
        counts: dict[int, int] = {}
        for slot in self.slots:
            counts[slot.host] = counts.get(slot.host, 0) + 1
        return tuple(counts.items())

    @cached_property
    def is_proper(self) -> bool:
        """Whether every slot is a part of another device, or all of it."""
        return len(set(self.devices)) == len(self.slots) and all(0 < slot.share <= 1 for slot in self.slots)

    @cached_property
    def is_shared(self) -> bool:
        """Whether others may use some of its devices beside it."""
        return any(slot.share < 1.0 for slot in self.slots)
