"""Blocks that share a scale in Triton against the reference, bit by bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from laconic.kernels import blocks, reference
from laconic.kernels.reference.blocks import BlockFormat
from tests.kernels.on import DEVICE, KINDS, gpu, misaligned, poisoned, same, tensor

LENGTHS = [1, 31, 33, 1027, 2049]
QUICK = ["nan", "heavy"]  # one kind of input for each format unless long tests are asked for
KEYS = [3, 2**63 + 2**40, 77, 5, 2**64 - 1]
FORMATS = [
    BlockFormat("int8", "float32", 0),
    BlockFormat("int8", "float32", 64, stochastic=True),
    BlockFormat("int8", "float32", 0, stochastic=True),
    BlockFormat("int8", "float32", 2048),
    BlockFormat("int8", "float32", 100),  # no body
    BlockFormat("e4m3", "float32", 128),
    BlockFormat("e5m2", "float32", 0),
    BlockFormat("e4m3", "e8m0", 32),
    BlockFormat("e5m2", "e8m0", 32, stochastic=True),
    BlockFormat("e2m1", "e8m0", 32, ceil=False),
    BlockFormat("e2m1", "e8m0", 32, stochastic=True),
    BlockFormat("int4", "float32", 128),
]


def hard(kind: str, n: int, seed: int) -> torch.Tensor:
    """Return such a tensor whose parts are of very different sizes, subnormal ones and the largest among them."""
    sizes = torch.tensor([1.0, 1e-44, 1e-38, 1e-12, 1e12, 3e37])
    return tensor(kind, n, seed) * sizes.repeat_interleave(-(-n // 6))[:n].to(DEVICE)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        pytest.param(
            how, kind, id=f"{how}-{kind}", marks=() if kind == QUICK[i % 2] and i % 4 == 0 else pytest.mark.long
        )
        for i, how in enumerate(FORMATS)
        for kind in KINDS
    ],
)
def test_messages_memories_and_means_are_the_references(how: BlockFormat, kind: str) -> None:
    xs = [hard(kind, n, seed) for seed, n in enumerate(LENGTHS)]
    shares = [0.3, 1.0, 0.7, 0.1, 1 / 3]
    for fed, counted in ((False, None), (True, None), (True, shares)):
        errors = [0.1 * tensor("normal", n, 9) for n in LENGTHS] if fed else None
        expected = None if errors is None else [error.clone() for error in errors]
        with poisoned():
            message = gpu.encode_blocks(xs, errors, how, KEYS, counted)
        assert same(message, blocks.encode_blocks(reference, xs, expected, how, KEYS, counted))
        assert errors is None or all(same(a, b) for a, b in zip(errors, expected, strict=True))
    assert message.numel() == sum(map(how.message_bytes, LENGTHS))
    other = gpu.encode_blocks([-x for x in xs], None, how, KEYS)
    for rows, counted in ((message[None], None), (torch.stack([message, other, message]), shares)):
        with poisoned():
            means = gpu.mean_of_blocks(rows, LENGTHS, how, None, counted)
        expected = blocks.mean_of_blocks(reference, rows, LENGTHS, how, None, counted)
        assert all(same(a, b) for a, b in zip(means, expected, strict=True))


@pytest.mark.parametrize("how", [FORMATS[0], FORMATS[7], FORMATS[-1]], ids=str)
def test_a_tensor_alone_may_begin_anywhere_and_means_are_written_where_wanted(how: BlockFormat) -> None:
    x, error = misaligned(tensor("heavy", 1027), 3), misaligned(tensor("normal", 1027, 1))
    expected = error.clone()
    message = gpu.encode_blocks([x], [error], how, [5])
    assert same(message, blocks.encode_blocks(reference, [x], [expected], how, [5])) and same(error, expected)
    room = torch.full((1027 + 8,), 7.0, device=DEVICE)
    for n in ([1027], [1, 1026], [500, 527]):
        message = gpu.encode_blocks(x.split(n), None, how, [])
        wanted = blocks.mean_of_blocks(reference, message[None], n, how)
        found = gpu.mean_of_blocks(message[None], n, how, room[3:-5].split(n))
        assert same(torch.cat(found), torch.cat(wanted)) and same(room[3:-5], torch.cat(wanted))
        assert (room[:3] == 7).all() and (room[-5:] == 7).all()


def test_sixteen_workers_and_more() -> None:
    how, n = BlockFormat("int8", "float32", 32), [100, 1000]
    drawn = ([tensor("normal", k, seed) for k in n] for seed in range(19))
    rows = torch.stack([blocks.encode_blocks(reference, xs, None, how, []) for xs in drawn])
    expected = blocks.mean_of_blocks(reference, rows, n, how)
    assert all(same(a, b) for a, b in zip(gpu.mean_of_blocks(rows, n, how), expected, strict=True))


def rounded(x: Fraction) -> np.float32:
    """Return the float32 nearest to an exact number that is none half-way between two."""
    near = np.float32(float(x))
    return min((near, *np.nextafter(near, np.float32([-2, 2]))), key=lambda w: abs(Fraction(float(w)) - x))


def test_a_corrected_quotient_is_the_nearest() -> None:
    """What `share_of` computes on a GPU, in exact numbers: a quotient, its remainder, the correction, and again."""
    draw = np.random.default_rng(1)
    for v, most in draw.standard_normal((2000, 2)).astype(np.float32):
        v, most = min(v, most, key=abs), abs(max(v, most, key=abs))
        inverse = np.float32(1) / most
        quotient = v * inverse
        for _ in range(2):
            rest = rounded(Fraction(float(v)) - Fraction(float(quotient)) * Fraction(float(most)))
            quotient = rounded(Fraction(float(quotient)) + Fraction(float(rest)) * Fraction(float(inverse)))
        assert quotient == v / most
