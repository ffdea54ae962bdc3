"""Walsh–Hadamard transforms of short blocks: other bodies against the reference bit by bit, and it against a matrix."""

from __future__ import annotations

import pytest
import torch

from laconic import kernels
from laconic.kernels import reference
from tests.kernels.test_bodies import KINDS, same, tensor

LENGTHS = [1, 31, 33, 0, 1027, 2049]
SHARES = [0.3, 1.0, 0.7, 0.2, 0.1, 1 / 3]


def padded(block: int) -> list[int]:
    return [-(-n // block) * block for n in LENGTHS]


def alike(found: object, expected: object) -> bool:
    return all(same(a, b) for a, b in zip(found, expected, strict=True))  # type: ignore[call-overload]


def compare(bodies: object, kind: str, block: int) -> None:
    """There and back, with shares, into memory that is there, and as what is left of it."""
    xs = [tensor(kind, max(1, n), n)[:n] for n in LENGTHS]
    for before, after in (("", ""), ("before", "after")):
        there = bodies.hadamard_blocks(xs, padded(block), block, turned=before)  # type: ignore[attr-defined]
        assert alike(there, reference.hadamard_blocks(xs, padded(block), block, turned=before))
        for rest in (False, True):
            room, other = torch.ones(2, sum(LENGTHS) + 8)
            back = (SHARES, rest, after)
            found = bodies.hadamard_blocks(there, LENGTHS, block, room[3:-5].split(LENGTHS), *back)  # type: ignore[attr-defined]
            expected = reference.hadamard_blocks(there, LENGTHS, block, other[3:-5].split(LENGTHS), *back)
            assert alike(found, expected) and same(room, other)
            assert not rest or room.isfinite().all()


@pytest.mark.parametrize("block", [2, 4, 8, 32, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_bodies_of_this_device_give_the_references_bits(kind: str, block: int) -> None:
    compare(kernels, kind, block)


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        pytest.param(kind, block, marks=() if (kind, block) == ("heavy", 32) else pytest.mark.long)
        for kind in KINDS
        for block in (2, 32, 256)
    ],
)
def test_triton_gives_the_references_bits(kind: str, block: int) -> None:
    from tests.kernels.on import DEVICE, gpu

    if DEVICE != "cpu":
        pytest.skip("tensors of this test are on the CPU, where Triton's interpreter runs")
    compare(gpu, kind, block)


@pytest.mark.parametrize("block", [2, 8, 64])
def test_the_reference_is_a_product_with_hadamards_matrix(block: int) -> None:
    matrix = torch.ones(1, 1)
    while len(matrix) < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    x = tensor("normal", 5 * block)
    (found,) = reference.hadamard_blocks([x], [5 * block], block)
    expected = (x.view(-1, block) @ matrix / block**0.5).view(-1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_tensors_of_another_layout_are_transformed_too() -> None:
    x, out = torch.randn(100, 2), torch.zeros(100, 2)
    kernels.hadamard_blocks([x[:, 0]], [100], 4, [out[:, 1]])
    assert same(out[:, 1].contiguous(), reference.hadamard_blocks([x[:, 0].contiguous()], [100], 4)[0])
