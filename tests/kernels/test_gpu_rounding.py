"""Rounding to bfloat16 at random in Triton: the reference's bits."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import reference
from tests.kernels.on import DEVICE, gpu, misaligned, poisoned, tensor


@pytest.mark.parametrize("lengths", [(5000,), (1, 4097, 300)])
def test_rounded_at_random_as_the_reference_does(lengths: tuple[int, ...]) -> None:
    xs = [misaligned(tensor("heavy", n, n)) for n in lengths]
    xs[0][0] = torch.finfo(torch.float32).max
    with poisoned():
        found = gpu.round_randomly(xs, [n * 77 + 1 for n in range(len(xs))])
    expected = reference.round_randomly(xs, [n * 77 + 1 for n in range(len(xs))])
    assert found.dtype == torch.bfloat16 and found.device.type == DEVICE
    assert torch.equal(found.cpu(), expected.cpu())
