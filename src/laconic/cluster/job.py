"""A job: what it asks for, and how fast it proceeds on what it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.errors import ClusterError


class Rate(NamedTuple):
    """How fast a job proceeds from where it is, until something of the job itself changes that.

    - `speed`: work a second.
    - `until`: how much work is done when the rate changes, or the job ends.
    - `communicating`: the share of the time in which its workers wait for messages.
    - `rounded`: the seconds to whose multiples the time until then is rounded, to the nearest; 0: it is not. What is
      rounded down to the moment of a decision in rounds counts after it.
    """

    speed: float
    until: float
    communicating: float = 0.0
    rounded: float = 0.0

    def seconds(self, done: float) -> float:
        """Return how long it takes until the rate changes; infinite where the job does not proceed.

        - `done`: the work that is done.
        """
        exact = self.exact_seconds(done)
        return round(exact / self.rounded) * self.rounded if self.rounded and exact < math.inf else exact

    def exact_seconds(self, done: float) -> float:
        """Return the same before it is rounded."""
        return max(self.until - done, 0.0) / self.speed if self.speed > 0 else math.inf


class Progress(Protocol):
    """How a job proceeds: work, in a unit of its own, and rates on grants."""

    @property
    def work(self) -> float:
        """All work of the job."""

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        """Return the rate on a grant.

        - `done`: the work that is done.
        - `grant`: what the job holds.
        - `cluster`: whose slots these are.
        - `beside`: the jobs that hold shares of the same devices.
        """


@dataclass(frozen=True)
class Fixed:
    """A job whose whole gang takes so many seconds, wherever it runs; less of a device takes in proportion longer.

    - `work`: the seconds.
    """

    work: float

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        return Rate(min(slot.share for slot in grant.slots) if grant.is_shared else 1.0, self.work)


@dataclass(frozen=True)
class Job:
    """What somebody submits.

    - `name`: what tells it from others.
    - `arrival`: when it is submitted, in seconds.
    - `gpus`: the GPUs that it asks for: whole ones for a gang of as many workers, or a part of one.
    - `progress`: how it proceeds.
    - `tenant`: whose it is.
    - `kind`: what it trains.
    - `least`, `most`: the workers that it can do with and can use, where it is elastic; both are `gpus` otherwise.
    - `deadline`: when it should be done, in seconds.
    - `weight`: how much it counts.
    - `gpu_types`: the types of GPU that it can run on; none given: all.
    - `cpu_milli`, `memory_mib`: what each job needs of a host beside GPUs.
    - `gpu_memory_bytes`: what each worker needs of a GPU's memory.
    - `gpu_persistent_bytes`: of this, what it needs between its iterations too, such as the model.
    - `data_bytes`: of the data that it loads before it computes.
    - `utilisation`: the share of a GPU that each worker keeps busy alone, where that is known or predicted.
    """

    name: str
    arrival: float
    gpus: float
    progress: Progress
    tenant: str = ""
    kind: str = ""
    least: int = 0
    most: int = 0
    deadline: float = math.inf
    weight: float = 1.0
    gpu_types: frozenset[str] = field(default=frozenset())
    cpu_milli: float = 0.0
    memory_mib: float = 0.0
    gpu_memory_bytes: float = 0.0
    gpu_persistent_bytes: float = 0.0
    data_bytes: float = 0.0
    utilisation: float = 1.0

    def __post_init__(self) -> None:
        if not self.gpus > 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ClusterError(f"{self.name} asks for {self.gpus} GPUs; ask for a part of one, or for whole ones")
        if self.gpu_persistent_bytes > self.gpu_memory_bytes:
            raise ClusterError(f"{self.name} keeps more of a GPU's memory between iterations than it needs at most")
        if not 0 <= self.utilisation <= 1:
            raise ClusterError(f"{self.name} keeps {self.utilisation:g} of a GPU busy; that is between 0 and 1")
        if self.progress.work < 0:
            raise ClusterError(f"{self.name} has less than no work to do")
        for name in ("least", "most"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.workers)

    @cached_property
    def workers(self) -> int:
        """The workers of the gang that it asks for."""
        return max(int(self.gpus), 1)

    @property
    def gpu_ephemeral_bytes(self) -> float:
        """What each worker needs of a GPU's memory only while an iteration runs."""
        return self.gpu_memory_bytes - self.gpu_persistent_bytes

    @cached_property
    def share(self) -> float:
        """The share of a device that each worker asks for."""
        return min(self.gpus, 1.0)
