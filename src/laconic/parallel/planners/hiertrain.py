"""HierTrain's planner: layers and samples of one mini-batch divided among a device, an edge server and the cloud."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.registry import technique

ROLES = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
"""Every assignment of the three machines to the roles o, s and l."""
Line = tuple[float, float, float, float]
"""Seconds for each sample of o, of s and of l, and seconds besides."""


@dataclass(frozen=True)
class MachineTimes:
    """What one machine takes: seconds of each layer for a sample, forward and backward, and of the layer's update."""

    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    update_seconds: tuple[float, ...]


@dataclass(frozen=True)
class HierProfile:
    """Three machines, of which the first holds the data, with what layers take on them and the rates between them.

    - `output_bytes`, `parameter_bytes`: of each layer, the outputs for a sample.
    - `sample_bytes`: of a sample that a machine is sent.
    - `bits_per_second`: of each machine's own link; two machines talk at the rate of the slower one.
    """

    machines: tuple[MachineTimes, MachineTimes, MachineTimes]
    output_bytes: tuple[float, ...]
    parameter_bytes: tuple[float, ...]
    sample_bytes: float
    bits_per_second: tuple[float, float, float]

    @property
    def layers(self) -> int:
        return len(self.output_bytes)

    def transfer_seconds(self, a: int, b: int, nbytes: float) -> float:
        """Return what a message between two machines takes; none where they are the same."""
        return 0.0 if a == b else 8 * nbytes / min(self.bits_per_second[a], self.bits_per_second[b])


@dataclass(frozen=True)
class Split:
    """Who does what of a mini-batch.

    - `machines`: the machines in the roles o, s and l: o holds all layers, s and l the first ones.
    - `depths`: the layers that s and l hold, s at most as many as l; none leaves the machine out.
    - `samples`: of o, s and l.
    """

    machines: tuple[int, int, int]
    depths: tuple[int, int]
    samples: tuple[int, int, int]

    def __post_init__(self) -> None:
        if not 0 <= self.depths[0] <= self.depths[1] or min(self.samples) < 0:
            raise LaconicError(f"{self} is no split: s holds at most as many layers as l, and samples are not negative")
        if any((depth == 0) != (count == 0) for depth, count in zip(self.depths, self.samples[1:], strict=True)):
            raise LaconicError(f"{self} is no split: a machine has layers and samples, or neither")


def seconds(profile: HierProfile, split: Split) -> float:
    """Return what an iteration takes: the sum of its phases, each as long as the slowest of the three machines."""
    return sum(
        max(sum(c * b for c, b in zip(line, (*split.samples, 1), strict=True)) for line in phase)
        for phase in _phases(profile, split.machines, split.depths)
    )


@technique(
    "hiertrain",
    axis="parallel",
    paper="Liu, Chen, Zhou, Ling, IEEE Open Journal of the Communications Society 1, 2020",
    why_no_word="Its three machines hold different layers, and a sentence says what equal workers exchange; "
    "`laconic.parallel.hiertrain` trains with a split.",
)
def hiertrain(profile: HierProfile, batch: int) -> Split:
    """Divide a mini-batch's layers and samples among three machines so that an iteration is as short as possible.

    For every assignment of roles and every pair of depths the numbers of samples are a small integer linear program;
    the best of all is the plan. Reading chosen: phases follow each other, each as long as its slowest machine; new
    weights return to s and l, which update nothing.
    """
    best: tuple[float, Split] | None = None
    for machines in ROLES:
        for deep in range(profile.layers + 1):
            for shallow in range(deep + 1):
                if (shallow > 0) + (deep > 0) > batch:
                    continue
                samples = _samples(_phases(profile, machines, (shallow, deep)), (shallow, deep), batch)
                split = Split(machines, (shallow, deep), samples)
                if best is None or seconds(profile, split) < best[0]:
                    best = (seconds(profile, split), split)
    if best is None:
        raise LaconicError("a mini-batch needs at least one sample")
    return best[1]


def _samples(phases: Sequence[Sequence[Line]], depths: tuple[int, int], batch: int) -> tuple[int, int, int]:
    """Return the numbers of samples with which the phases take least, by an integer linear program."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows, limits = [], []
    for number, phase in enumerate(phases):
        for line in phase:
            row = [0.0] * (3 + len(phases))
            row[:3], row[3 + number] = line[:3], -1.0
            rows.append(row)
            limits.append(-line[3])
    largest = max(max(map(abs, row[:3])) for row in rows) or 1.0  # the solver's tolerances are absolute
    scaled = np.array(rows)
    scaled[:, :3] /= largest
    whole = LinearConstraint([[1, 1, 1] + [0] * len(phases)], batch, batch)
    low = [0, *(float(depth > 0) for depth in depths), *(0 for _ in phases)]
    high = [batch, *(batch if depth else 0 for depth in depths), *(math.inf for _ in phases)]
    found = milp(
        [0, 0, 0, *(1 for _ in phases)],
        integrality=[1, 1, 1, *(0 for _ in phases)],
        bounds=Bounds(low, high),
        constraints=[LinearConstraint(scaled, -np.inf, np.array(limits) / largest), whole],
        options={"mip_rel_gap": 0.0},
    )
    o, s, l_ = (round(x) for x in found.x[:3])
    return (o, s, l_)


def _phases(profile: HierProfile, machines: tuple[int, int, int], depths: tuple[int, int]) -> list[list[Line]]:
    """Return the phases of an iteration, each as what the machines take in it."""
    o, s, l_ = machines
    shallow, deep = depths
    layers = profile.layers

    def forward(machine: int, start: int, stop: int) -> float:
        return sum(profile.machines[machine].forward_seconds[start:stop])

    def backward(machine: int, start: int, stop: int) -> float:
        return sum(profile.machines[machine].backward_seconds[start:stop])

    def output(machine: int, depth: int) -> float:
        return profile.transfer_seconds(machine, o, profile.output_bytes[depth - 1]) if depth else 0.0

    def weights(machine: int, depth: int) -> float:
        return profile.transfer_seconds(machine, o, sum(profile.parameter_bytes[:depth]))

    first, second, third = (profile.transfer_seconds(0, machine, profile.sample_bytes) for machine in machines)
    exchange: list[Line] = [(0, 0, 0, weights(s, shallow)), (0, 0, 0, weights(l_, deep))]
    found: list[list[Line]] = [[(first, 0, 0, 0), (0, second, 0, 0), (0, 0, third, 0)]]
    for passed in (forward, backward):
        early, middle, late = passed(o, 0, shallow), passed(o, shallow, deep), passed(o, deep, layers)
        below = passed(s, 0, shallow) + output(s, shallow)
        found += [
            [(early, 0, 0, 0), (0, below, 0, 0), (0, 0, passed(l_, 0, shallow), 0)],
            [(middle, middle, 0, 0), (0, 0, passed(l_, shallow, deep) + output(l_, deep), 0)],
            [(late, late, late, 0)],
        ]
    return [*found, exchange, [(0, 0, 0, sum(profile.machines[o].update_seconds))], exchange]
