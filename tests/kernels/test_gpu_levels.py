"""Levels in Triton against the reference, bit by bit."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import messages, reference
from tests.kernels.on import KINDS, gpu, misaligned, poisoned, same, tensor

LENGTHS = [1, 515, 2049]
KEYS = [3, 2**63 + 2**40, 77]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("steps", "bucket", "norm"), [(1, 512, "max"), (7, 512, "l2"), (7, 64, "max"), (127, 4096, "l2")]
)
def test_messages_and_memories_are_the_references(kind: str, steps: int, bucket: int, norm: str) -> None:
    xs = [tensor(kind, n, seed) for seed, n in enumerate(LENGTHS)]
    for fed in (True, False):
        errors = [0.1 * tensor("normal", n, 9) for n in LENGTHS] if fed else None
        expected = None if errors is None else [error.clone() for error in errors]
        how = (bucket, steps, norm, KEYS)
        with poisoned():
            message = gpu.encode_levels(xs, errors, *how)
        assert same(message, messages.encode_levels(reference, xs, expected, *how))
        assert errors is None or all(same(a, b) for a, b in zip(errors, expected, strict=True))
    rows = torch.stack([message, message])
    with poisoned():
        means = gpu.mean_of_levels(rows, LENGTHS, bucket, steps)
    for mean, other in zip(means, messages.mean_of_levels(reference, rows, LENGTHS, bucket, steps), strict=True):
        assert same(mean, other)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_tensor_alone_may_begin_anywhere(n: int) -> None:
    x, error = misaligned(tensor("heavy", n), 3), misaligned(tensor("normal", n, 1))
    expected = error.clone()
    assert same(
        gpu.encode_levels([x], [error], 512, 7, "max", [5]),
        messages.encode_levels(reference, [x], [expected], 512, 7, "max", [5]),
    )
    assert same(error, expected)


def test_memories_keep_what_a_share_leaves_and_means_are_written_where_wanted() -> None:
    xs, shares = [tensor("heavy", n, seed) for seed, n in enumerate(LENGTHS)], [0.3, 1.0, 1 / 3]
    errors = [0.1 * tensor("normal", n, 9) for n in LENGTHS]
    expected = [error.clone() for error in errors]
    how = (512, 7, "l2", KEYS)
    message = gpu.encode_levels(xs, errors, *how, shares)
    assert same(message, messages.encode_levels(reference, xs, expected, *how, shares))
    assert all(same(a, b) for a, b in zip(errors, expected, strict=True))
    rows, room = torch.stack([message, message, message]), torch.full((sum(LENGTHS) + 2,), 7.0, device=message.device)
    wanted = messages.mean_of_levels(reference, rows, LENGTHS, 512, 7, None, shares)
    gpu.mean_of_levels(rows, LENGTHS, 512, 7, room[1:-1].split(LENGTHS), shares)
    assert same(room[1:-1], torch.cat(wanted)) and room[0] == room[-1] == 7
