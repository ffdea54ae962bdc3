"""Tensors of more than 2³¹ bytes, which offsets of 32 bits do not reach: only where a GPU has room for them."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import codes, messages, reference
from tests.kernels.on import gpu, same

ROOM = 40 << 30
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < ROOM,
    reason="needs a CUDA device with 40 GiB",
)
N = (1 << 29) + 12_345


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(N, device="cuda", generator=torch.Generator("cuda").manual_seed(0))


def test_signs(x: torch.Tensor) -> None:
    error, expected = torch.zeros(2, N, device="cuda")
    message = gpu.encode_signs([x], [error])
    assert torch.equal(message, messages.encode_signs(reference, [x], [expected])) and torch.equal(error, expected)
    rows = torch.stack([message, message])
    assert torch.equal(gpu.mean_of_signs(rows, [N])[0], messages.mean_of_signs(reference, rows, [N])[0])


def test_levels(x: torch.Tensor) -> None:
    """Nothing is further from what it was than a level is from the next."""
    message = gpu.encode_levels([x], None, 512, 7, "max", [5])
    sent = gpu.mean_of_levels(message[None], [N], 512, 7)[0]
    assert float((sent - x).abs().max()) <= float(x.abs().max()) / 7 * 1.0001


def test_selection_and_trits(x: torch.Tensor) -> None:
    for found, expected in zip(gpu.select(x, 4.0), reference.select(x, 4.0), strict=True):
        assert same(found, expected)
    assert torch.equal(gpu.encode_trits([x], None, 1.0), codes.encode_trits(reference, [x], None, 1.0))
