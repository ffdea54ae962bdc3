"""The deployment that strategies are priced for: a model's times, the workers and their network."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from laconic.cost.collectives import Vector
from laconic.cost.from_profile import tensors_of
from laconic.network.network_tree import Level, Network
from laconic.planner.risk import Training, training_of
from laconic.planner.values import PlanError
from laconic.values.profile import CodecTimes, Profile
from laconic.values.tensor_spec import TensorSpec

MOST_SERVERS = 1_000_000


@dataclass(frozen=True)
class Deployment:
    """Workers with the profile's times on a network; `slowness` multiplies computing times, worker by worker (cycled).

    Parameter servers run on `servers` separate hosts, or on the workers where that is 0. Phases are weighed by their
    shares of the run's `steps`.
    """

    profile: Profile
    network: Network
    workers: int
    slowness: tuple[float, ...] = (1.0,)
    servers: int = 0
    codecs: tuple[CodecTimes, ...] = field(default=())  # in addition to the profile's own
    steps: int | None = None  # None: not known

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise PlanError(f"a plan is for at least one worker, not {self.workers}")
        if self.steps is not None and self.steps < 1:
            raise PlanError(f"a plan is for a run of at least one step, not {self.steps}")
        if not 0 <= self.servers <= MOST_SERVERS:
            raise PlanError(f"a plan is for 0 to {MOST_SERVERS} servers, not {self.servers}")
        if not self.slowness or min(self.slowness) <= 0:
            raise PlanError(f"slowness multiplies computing and is positive, not {self.slowness}")

    @cached_property
    def tensors(self) -> list[TensorSpec]:
        """The model's tensors in the order of the forward pass."""
        return tensors_of(self.profile)[0]

    @cached_property
    def training(self) -> Training:
        """What the effect of a strategy on the loss depends on."""
        return training_of(self.profile, self.workers, self.steps)

    @property
    def arrival(self) -> list[int]:
        return list(reversed(range(len(self.tensors))))

    @cached_property
    def slowest(self) -> float:
        return max(self.slowness[: self.workers])

    @cached_property
    def backward(self) -> Vector:
        """The backward seconds of each tensor on the slowest worker, in the order of the forward pass."""
        shares = np.array([t.backward_seconds for t in reversed(self.profile.model.tensors)])
        whole = shares.sum()
        shares = shares / whole if whole else np.full(len(shares), 1 / len(shares))
        return self.slowest * self.profile.model.backward.median * shares

    @cached_property
    def forward(self) -> Vector:
        """The forward seconds of each tensor on the slowest worker, divided over tensors as backward is."""
        whole = self.backward.sum()
        shares = self.backward / whole if whole else np.full(len(self.backward), 1 / len(self.backward))
        return self.slowest * self.profile.model.forward.median * shares

    @property
    def step_seconds(self) -> float:
        return self.slowest * self.profile.model.step.median

    @property
    def computing_seconds(self) -> float:
        return self.slowest * self.profile.model.seconds

    def own_seconds(self, period: int) -> float:
        """Return the computing time of a step where workers synchronise only every `period` steps.

        Random delays of single steps, which make the slowest worker slower than the mean, even out as the square root
        of the period; permanently slow workers do not.
        """
        even = self.profile.model.even
        return self.computing_seconds * (even + (1 - even) / math.sqrt(period))

    @cached_property
    def codec_times(self) -> dict[str, CodecTimes]:
        return {codec.words: codec for codec in (*self.profile.codecs, *self.codecs)}

    # ------------------------------------------------------------------------------------------ parts of the network

    @property
    def path(self) -> tuple[float, float]:
        """The path between any two workers: its latency, and the seconds per byte of its slowest link."""
        levels = self.network.levels
        return levels[-1].latency_seconds, 8 / min(level.bits_per_second for level in levels)

    @property
    def units(self) -> int:
        """The number of groups of workers that share a link on the outermost level; 1 where there is only one level."""
        outer = self.network.levels[-1].workers
        return self.workers // outer if 1 < outer < self.workers and self.workers % outer == 0 else 1

    def inside(self) -> tuple[Network, int]:
        """Return the network within one unit, and its number of workers."""
        size = self.workers // self.units
        levels = self.network.levels[:-1]
        return replace(self.network, size=size, levels=levels, links={}, pairs={}, measured=None), size

    def between(self) -> tuple[Network, int]:
        """Return the network between units, and their number; the workers of a unit send at once and share its link."""
        size = self.workers // self.units
        outer = self.network.levels[-1]
        rate = min(outer.bits_per_second / size, *(level.bits_per_second for level in self.network.levels[:-1]))
        level = Level(1, rate, outer.latency_seconds)
        return replace(self.network, size=self.units, levels=(level,), links={}, pairs={}, measured=None), self.units
