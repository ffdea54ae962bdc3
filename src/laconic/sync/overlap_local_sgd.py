"""Overlap-Local-SGD: local SGD whose averaging overlaps with the next round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.offload import flush
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import BucketContext
from laconic.sync.outer_optimizer import OFFLOAD, Outer, OuterBucket
from laconic.values.cadence import Cadence
from laconic.worker import Communication

_MEAN = "mean"


@technique("overlap_local_sgd", paper="Wang, Liang, Joshi, ICASSP 2020, arXiv 2002.09539")
@dataclass(frozen=True)
class OverlapLocalSGD(Outer):
    """Pull every worker towards an anchor that is one round old, and average the models during the next round.

    At a round's end, wait for the mean that was started a round ago, move the anchor z there (with momentum: v = beta·v
    + mean − z, z = z + v), pull the model x back to x − alpha·(x − z), and start the next mean. The first pull is
    towards the initial model, as in the paper's matrix form. With `alpha=0` models never agree; with `alpha=1` all
    restart from z.
    """

    period: int = knob(12, low=1, gentler="less", doc="local steps in a round")
    alpha: float = knob(0.6, low=0, high=1, doc="how far a worker is pulled towards the anchor")
    beta: float = knob(0.7, low=0, below=1, doc="the anchor's momentum")
    offload: bool = knob(False, doc=OFFLOAD)

    @property
    def cadence(self) -> Cadence:
        return Cadence(self.period, overlaps=False, flight=self.period)

    def step(self, context: BucketContext, point: Tensor, momentum: Tensor | None, gradient: Tensor) -> None:
        assert momentum is not None
        momentum.mul_(self.beta).sub_(gradient)
        point.add_(momentum)

    @torch.no_grad()
    def after_step(self, context: BucketContext, state: State) -> Communication[State]:
        if self.steps(context, state) % self.period == 0:
            moved = []
            for bucket in (yield from self._with_anchors_moved(context, state)):
                bucket.pull(self.alpha)
                moved.append(bucket.displacement())
                bucket.end()
            flush(context.parameters[0].device)
            (everything,) = self.fragments_in(context)
            context.start(_MEAN, self.averages(context, everything, moved))
        return state

    def _with_anchors_moved(self, context: BucketContext, state: State) -> Communication[Iterator[OuterBucket]]:
        """Wait for the mean that was started a round ago, and return the buckets, their anchors moved there."""
        means = (yield from context.wait_for(_MEAN)) if context.is_in_flight(_MEAN) else None
        return self._moved(context, state, means)

    def _moved(self, context: BucketContext, state: State, means: Sequence[Tensor] | None) -> Iterator[OuterBucket]:
        (everything,) = self.fragments_in(context)
        for k, members in enumerate(context.buckets(everything)):
            bucket = OuterBucket(self, context, state, members)
            if means is not None:
                bucket.move(means[k])
            yield bucket

    def leave(self, context: BucketContext, state: State) -> Communication[Any]:
        for bucket in (yield from self._with_anchors_moved(context, state)):
            bucket.end()
        flush(context.parameters[0].device)
        yield from super().leave(context, state)
