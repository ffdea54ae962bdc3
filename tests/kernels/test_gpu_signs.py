"""Signs in Triton against the reference, bit by bit."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import messages, reference
from laconic.kernels.sums import rows_summed
from tests.kernels.on import KINDS, gpu, misaligned, poisoned, same, tensor

signs = pytest.importorskip("laconic.kernels.gpu.signs")

LENGTHS = [1, 7, 1024, 4096, 5001]


def list_of(kind: str) -> list[torch.Tensor]:
    return [tensor(kind, n, seed) for seed, n in enumerate(LENGTHS)]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alone", [True, False])
def test_messages_and_memories_are_the_references(kind: str, alone: bool) -> None:
    for xs in [[x] for x in list_of(kind)] if alone else [list_of(kind)]:
        errors = [0.1 * tensor("normal", x.numel(), 9) for x in xs]
        expected = [error.clone() for error in errors]
        with poisoned():
            message = gpu.encode_signs(xs, errors)
        assert same(message, messages.encode_signs(reference, xs, expected))
        assert all(same(a, b) for a, b in zip(errors, expected, strict=True))
        rows, lengths = torch.stack([message, message.flip(0), message]), [x.numel() for x in xs]
        with poisoned():
            means = gpu.mean_of_signs(rows, lengths)
        for mean, other in zip(means, messages.mean_of_signs(reference, rows, lengths), strict=True):
            assert same(mean, other)


@pytest.mark.long
def test_tensors_may_begin_anywhere() -> None:
    xs = [misaligned(tensor("heavy", n, n), 1 + n % 3) for n in LENGTHS]
    errors = [misaligned(tensor("normal", n, 2), 1) for n in LENGTHS]
    expected = [error.clone() for error in errors]
    assert same(gpu.encode_signs(xs, errors), messages.encode_signs(reference, xs, expected))
    assert all(same(a, b) for a, b in zip(errors, expected, strict=True))


def test_sums_of_many_blocks_are_summed_again() -> None:
    """As many as a tensor of three million elements has, and beside it one of a block."""
    sums = tensor("normal", 3001).abs()
    expected = torch.stack([rows_summed(part) for part in sums.split([3000, 1])])
    assert same(signs.finished(sums, [3000, 1]), expected)
