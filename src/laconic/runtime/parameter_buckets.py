"""Buckets of parameters, for rules that exchange something of the model's size after a step: one operation for each
bucket, and few buckets of it in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from laconic.compression.base import Compressor
from laconic.compression.optional import joins_of
from laconic.values.tensor_spec import TensorSpec

BUCKET_BYTES = 64 << 20
"""The size from which on a bucket takes no more tensors. A message of it keeps a link of 100 Gb/s busy for 5 ms, a
thousand times what starting it costs; and five of it, with their outer state, are a small part of a GPU's memory."""


def form_buckets(
    specs: Sequence[TensorSpec], devices: Sequence[torch.device], compressor: Compressor
) -> list[list[int]]:
    """Return the indices of tensors in buckets, in their order: of one type and device, all compressed or none. Those
    that a compressor joins to one vector stay together whatever their size."""
    open_buckets: dict[tuple[torch.dtype, torch.device, bool], tuple[list[int], int]] = {}
    found: list[list[int]] = []
    for k, (spec, device) in enumerate(zip(specs, devices, strict=True)):
        compressed = compressor.accepts(spec)
        bucket, nbytes = open_buckets.get((spec.dtype, device, compressed), ([], 0))
        whole = compressed and joins_of(compressor)
        if not bucket or (nbytes + spec.nbytes > BUCKET_BYTES and not whole):
            bucket, nbytes = [], 0
            found.append(bucket)
        bucket.append(k)
        open_buckets[spec.dtype, device, compressed] = bucket, nbytes + spec.nbytes
    return found
