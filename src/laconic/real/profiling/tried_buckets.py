"""Exchanges of a plan's buckets on this machine's device, without other workers: how the runtime would exchange them.

What decides is the device, the tensors' shapes and what a compressor declares, so that a few exchanges of random values
on an echo group tell it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.real.profiling.echo_group import EchoGroup
from laconic.runtime.bucket_uses import BucketReport
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.ledger import Ledger
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence
from laconic.values.comm_plan import CommPlan
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication

_TYPICAL = 1e-3  # size of a gradient's element
_ON_GPU, _ON_CPU = 4, 1  # exchanges: on a GPU the fourth is recorded


class TriedBucket:
    """One bucket of tensors with random values, which a tier exchanges again and again as the runtime does."""

    def __init__(self, tier: Tier, specs: Sequence[TensorSpec], device: torch.device) -> None:
        self._tier, self._specs = tier, tuple(specs)
        numel = sum(spec.numel for spec in specs)
        self._flat = torch.zeros(numel, dtype=specs[0].dtype, device=device)
        parts = self._flat.split([spec.numel for spec in specs])
        self._places: list[Tensor] = [part.view(spec.shape) for part, spec in zip(parts, specs, strict=True)]
        self._draw = torch.Generator(device).manual_seed(0)
        self.lane = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._step = 0

    def renew(self) -> None:
        """Write new gradients: normal values, as gradients nearly are; what a selection costs depends on them."""
        self._flat.normal_(std=_TYPICAL, generator=self._draw)

    def exchange(self) -> Communication[None]:
        """Exchange the bucket in place in the next step: as a whole or, where that cannot be, tensor by tensor."""
        step, self._step = self._step, self._step + 1
        whole: Communication[Any] | None = self._tier.whole.average(
            self._specs, self._flat, step, self.lane is not None
        )
        if whole is not None:
            yield from whole
            return
        means = yield from self._tier.average(self._specs, self._places, step)
        for place, mean in zip(self._places, means, strict=True):
            place.copy_(mean)


def tried_buckets(sentence: Sentence, plan: CommPlan, workers: int, device: torch.device) -> list[BucketReport]:
    """Exchange every bucket of a plan in which something is compressed, one after another, and return how that went.

    A parameter server's clients need the server: for them nothing is tried.
    """
    found: list[BucketReport] = []
    for members in plan.buckets:
        tier = Tier(sentence, EchoGroup(0, tuple(range(workers)), Ledger()))  # none has memory of the bucket before
        tensors = [plan.tensors[i] for i in members if i not in plan.plain]
        specs = [spec for spec in tensors if tier.compressor.accepts(spec)]
        if specs and tier.architecture.collective:
            bucket = TriedBucket(tier, specs, device)
            for _ in range(_ON_GPU if device.type == "cuda" else _ON_CPU):
                bucket.renew()
                complete([InFlight(bucket.exchange(), bucket.lane)])
            found += tier.whole.reports()
    return found
