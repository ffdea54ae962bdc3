"""Whole buckets of selected values: what is sent of each tensor, and the exchange of all of them as one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, draw_keys
from laconic.kernels.lists import TensorList


@dataclass(frozen=True)
class SelectedLayout:
    """What a message holds of tensors of these lengths: of each at most so many places, of so many bits, with their
    values in float32."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    widths: tuple[int, ...]
    left_out: float

    def exchange_largest(self, bucket: TensorBucket, errors: TensorList | None, meet: BucketMeet) -> BucketExchange:
        """Exchange the largest magnitudes, exactly so many of each tensor: no length depends on the values, so nobody
        waits for one."""
        payload = kernels.encode_largest(bucket.tensors, errors, self.counts, self.widths)
        own = self.averaged(payload[None], torch.empty_like(bucket.flat)) if meet.own else None
        rows = yield meet.gather(payload)
        meet.common(rows, bucket.flat, lambda: self.averaged(rows, bucket.flat))
        return own

    def exchange_sampled(
        self, samples: Sequence[tuple[int, int]], bucket: TensorBucket, errors: TensorList | None, meet: BucketMeet
    ) -> BucketExchange:
        """Exchange what passes limits that are estimated from samples; the host waits once, for all workers' lengths
        together."""
        keys = draw_keys(meet.each(), "sample")
        payload, lengths = kernels.encode_sampled(bucket.tensors, errors, samples, self.counts, self.widths, keys)
        own = None
        if meet.own:
            sizes = lengths.tolist()
            parts = payload[: sum(sizes)].split(sizes)
            own = self._averaged_parts([parts], torch.empty_like(bucket.flat))
        self._averaged_parts((yield meet.gather_ragged(payload, lengths)), bucket.flat)
        return own

    def averaged(self, rows: Tensor, total: Tensor) -> Tensor:
        """Write the means of all tensors, one behind another, into `total`, from payloads of exactly so many places."""
        kernels.average_places(total, rows, self.lengths, self.counts, self.widths, self.left_out)
        return total

    def _averaged_parts(self, rows: Sequence[Sequence[Tensor]], total: Tensor) -> Tensor:
        kernels.average_counted_places(total, rows, self.lengths, self.widths, self.left_out)
        return total
