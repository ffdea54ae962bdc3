"""Levels of one tensor in buckets of any length in Triton against the reference, bit by bit."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import reference
from tests.kernels.on import DEVICE, KINDS, gpu, poisoned, same, tensor


@pytest.mark.parametrize(("n", "bucket"), [(1, 1), (33, 31), (2049, 100), (9001, 9001), (9001, 5000), (515, 512)])
@pytest.mark.parametrize("kind", KINDS)
def test_scales_codes_and_sums_are_the_references(kind: str, n: int, bucket: int) -> None:
    x = tensor(kind, n)
    with poisoned():
        scales = gpu.bucket_scales(x, bucket, "max")
    assert same(scales, reference.bucket_scales(x, bucket, "max"))
    assert same(gpu.bucket_scales(x, bucket, "l2"), reference.bucket_scales(x, bucket, "l2"))
    if kind not in ("infinite", "nan"):  # refused before anything is quantised
        for steps in (3, 7, 100):
            with poisoned():
                codes = gpu.quantize(x, scales, bucket, steps, 2**63 + 5)
            assert same(codes, reference.quantize(x, scales, bucket, steps, 2**63 + 5))
            totals = [tensor("normal", n, 1), tensor("normal", n, 1)]
            gpu.add_levels(totals[0], codes, scales, bucket, steps)
            reference.add_levels(totals[1], codes, scales, bucket, steps)
            assert same(*totals)
        packed = reference.quantize_in_nibbles(x, scales, bucket, 7, 5)
        totals = [torch.ones(n, device=DEVICE), torch.ones(n, device=DEVICE)]
        gpu.add_levels_of_nibbles(totals[0], packed, scales, bucket, 7)
        reference.add_levels_of_nibbles(totals[1], packed, scales, bucket, 7)
        assert same(*totals)
