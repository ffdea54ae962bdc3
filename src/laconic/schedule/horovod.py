"""Horovod's tensor fusion: gradients that are ready when a cycle ends are sent together, up to a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from laconic.claims import CoversOnce
from laconic.cost.iteration import Stage, Transfer, period
from laconic.registry import knob, technique
from laconic.schedule.base import Schedule
from laconic.schedule.wfbp import WFBP
from laconic.values.comm_plan import CommPlan, of_one_dtype, whole
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@technique("horovod", paper="Sergeev and Del Balso, arXiv 1802.05799", claims=[CoversOnce()])
@dataclass(frozen=True)
class Horovod(Schedule):
    """Fuse gradients that become ready within one cycle, up to a threshold, and reduce them in one message.

    Rank 0's measured times replace Horovod's coordinator: all workers fuse alike without negotiation in every cycle. So
    ranks report nothing, and one may start a reduction for which another has no gradient yet, and waits in it.
    Until times were measured, tensors are fused by size alone. Reading chosen: a cycle of 1 ms, as in current releases;
    the last gradient ends its cycle, since no other follows.
    """

    threshold_bytes: int = knob(64 * 2**20, low=0, doc="largest number of bytes in a fused message; 0: no fusion")
    cycle_seconds: float = knob(0.001, low=0.0, doc="length of a cycle")
    measures: ClassVar[bool] = True

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        if timing is None:
            return WFBP(self.threshold_bytes, first_bytes=self.threshold_bytes).plan(tensors, arrival)
        layers, order = timing.layers(tensors, arrival), tuple(reversed(arrival))
        groups = self.fused(layers)
        buckets = of_one_dtype(tensors, [[order[k] for k in group] for group in groups])
        return CommPlan(tuple(tensors), buckets, whole(buckets, tensors, arrival))

    def fused(self, layers: LayerTimes) -> list[tuple[int, ...]]:
        """Return the layers whose tensors share a message, in the order of readiness; a larger tensor is alone."""
        since, nbytes = layers.ready(), layers.nbytes
        ends = self._boundaries(since)
        groups: list[list[int]] = []
        held = 0.0
        for i in sorted(range(len(since)), key=lambda i: (since[i], -i)):
            if groups and ends[groups[-1][-1]] == ends[i] and held + nbytes[i] <= self.threshold_bytes:
                groups[-1].append(i)
                held += nbytes[i]
            else:
                groups.append([i])
                held = nbytes[i]
        return [tuple(group) for group in groups]

    def iteration_seconds(self, layers: LayerTimes, allreduce: Price) -> float:
        """Return an iteration's seconds, including the waits for cycles to end, which a plan in advance lacks."""
        since = layers.ready()
        waits, transfers = self._boundaries(since), []
        for number, group in enumerate(self.fused(layers)):
            nbytes = sum(layers.nbytes[i] for i in group)
            waiting = Stage(f"cycle {number}", waits[group[-1]] - since[group[-1]])
            transfers.append(Transfer(group, (waiting, Stage("net", allreduce.seconds(nbytes))), nbytes))
        return period(layers, transfers)

    def _boundaries(self, since: Sequence[float]) -> list[float]:
        """Return the end of the cycle in which each tensor became ready."""
        if not self.cycle_seconds:
            return list(since)
        last = max(since)
        if self.cycle_seconds == math.inf:
            return [last] * len(since)
        cycle = self.cycle_seconds
        return [min(last, max(at, max(1, math.ceil(at / cycle)) * cycle)) for at in since]
