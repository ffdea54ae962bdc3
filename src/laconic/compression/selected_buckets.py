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
    """What a message holds of tensors of these lengths: of each so many places, of so many bits, with their values in
    float32; or at most so many, with their number (`counted`). No length depends on the values, so nobody waits for
    one."""

    lengths: tuple[int, ...]
    most: tuple[int, ...]
    widths: tuple[int, ...]
    counted: bool
    left_out: float

    def exchange_largest(self, bucket: TensorBucket, errors: TensorList | None, meet: BucketMeet) -> BucketExchange:
        """Exchange the largest magnitudes, exactly so many of each tensor."""
        payload = kernels.encode_largest(bucket.tensors, errors, self.most, self.widths)
        return (yield from self._exchange(payload, bucket, meet))

    def exchange_sampled(
        self, samples: Sequence[tuple[int, int]], bucket: TensorBucket, errors: TensorList | None, meet: BucketMeet
    ) -> BucketExchange:
        """Exchange what passes limits that are estimated from samples."""
        keys = draw_keys(meet.each(), "sample")
        payload = kernels.encode_sampled(bucket.tensors, errors, samples, self.most, self.widths, keys)
        return (yield from self._exchange(payload, bucket, meet))

    def _exchange(self, payload: Tensor, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange:
        own = self.averaged(payload[None], torch.empty_like(bucket.flat)) if meet.own else None
        rows = yield meet.gather(payload)
        meet.common(rows, bucket.flat, lambda: self.averaged(rows, bucket.flat))
        return own

    def averaged(self, rows: Tensor, total: Tensor) -> Tensor:
        """Write the means of all tensors, one behind another, into `total`, from the payloads of all workers."""
        kernels.average_places(total, rows, self.lengths, self.most, self.widths, self.counted, self.left_out)
        return total
