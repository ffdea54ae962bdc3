"""Small codes in Triton against the reference, bit by bit: trits, columns, votes, exponents, ternaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.kernels import codes, reference
from tests.kernels.on import DEVICE, KINDS, gpu, misaligned, poisoned, same, tensor

LENGTHS = [1, 7, 2560, 2567]


def encoded(name: str, xs: list[Tensor], errors: list[Tensor] | None, *how: Any) -> Tensor:
    """A message, the same from both, and the same memories."""
    expected = None if errors is None else [error.clone() for error in errors]
    with poisoned():
        message = getattr(gpu, name)(xs, errors, *how)
    assert same(message, getattr(codes, name)(reference, xs, expected, *how))
    assert errors is None or all(same(a, b) for a, b in zip(errors, expected or (), strict=True))
    return message


def averaged(name: str, rows: Tensor, of: list[Any]) -> None:
    with poisoned():
        means = getattr(gpu, name)(rows, of)
    for mean, other in zip(means, getattr(codes, name)(reference, rows, of), strict=True):
        assert same(mean, other)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kind", KINDS)
def test_trits(kind: str) -> None:
    lengths = [7, 2567]
    xs, errors = [tensor(kind, n, n) for n in lengths], [0.1 * tensor("normal", n, 9) for n in lengths]
    message = encoded("encode_trits", xs, errors, 1.75)
    averaged("mean_of_trits", torch.stack([message, message]), lengths)


@pytest.mark.parametrize("n", LENGTHS)
def test_trits_of_a_tensor_alone(n: int) -> None:
    x, error = tensor("normal", n, n), 0.1 * tensor("normal", n, 9)
    first, second = encoded("encode_trits", [x], [error], 1.75), encoded("encode_trits", [x], None, 1.0)
    averaged("mean_of_trits", torch.stack([first, second, first]), [n])
    averaged("mean_of_trits", second.view(1, -1), [n])


@pytest.mark.filterwarnings("ignore:overflow")
def test_trits_of_what_is_almost_nothing() -> None:
    """Half of the smallest number is zero, and zeros have no sign."""
    for x in (torch.tensor([2.0**-149, 0.0, -0.0, -(2.0**-149)]), torch.tensor([3e38, -3e38, 1.0])):
        encoded("encode_trits", [x.to(DEVICE)], None, 1.5)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kind", KINDS)
def test_columns(kind: str) -> None:
    shapes = [(70, 1), (3, 136), (66, 5)]
    xs = [tensor(kind, rows * columns, rows) for rows, columns in shapes]
    errors = [0.1 * tensor("normal", x.numel(), 9) for x in xs]
    message = encoded("encode_columns", xs, errors, [columns for _, columns in shapes])
    averaged("mean_of_columns", torch.stack([message, message]), shapes)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(1, 1), (1030, 1), (1, 9), (70, 37), (65, 136), (33, 256)])
def test_columns_of_a_matrix_alone(shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, error = tensor("normal", rows * columns), 0.1 * tensor("normal", rows * columns, 9)
    first, second = encoded("encode_columns", [x], [error], [columns]), encoded("encode_columns", [x], None, [columns])
    averaged("mean_of_columns", torch.stack([first, second, first]), [shape])


def test_columns_of_zeros_have_means_without_a_sign() -> None:
    for value in (0.0, -0.0):
        encoded("encode_columns", [torch.full((12,), value, device=DEVICE)], None, [4])


@pytest.mark.long
def test_sums_of_many_blocks_are_summed_again() -> None:
    """More than 64 blocks of 64 rows, and more than 1024 of 1024."""
    sizes = [(4200, 4), (1024 * 1024 + 5000, 1)] if DEVICE == "cuda" else [(4100, 2)]
    for rows, columns in sizes:
        x = tensor("heavy", rows * columns)
        encoded("encode_columns", [x], [torch.zeros_like(x)], [columns])
    means = reference.columns.column_means(tensor("normal", 4200 * 4).view(-1, 4).double())
    x = tensor("normal", 4200 * 4).view(-1, 4)
    torch.testing.assert_close(means.float(), reference.columns.column_means(x), rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kind", KINDS)
def test_natural(kind: str) -> None:
    lengths = [7, 2567]
    xs, errors = [tensor(kind, n, n) for n in lengths], [0.1 * tensor("normal", n, 9) for n in lengths]
    message = encoded("encode_natural", xs, errors, [2**63, 77])
    averaged("mean_of_natural", torch.stack([message, message]), lengths)


@pytest.mark.parametrize("n", LENGTHS)
def test_natural_of_a_tensor_alone(n: int) -> None:
    x, error = tensor("normal", n, n), 0.1 * tensor("normal", n, 9)
    first, second = encoded("encode_natural", [x], [error], [3]), encoded("encode_natural", [x], None, [2**63])
    averaged("mean_of_natural", torch.stack([first, second, first]), [n])
    with poisoned():
        sent = gpu.decode_natural(first, n)
    assert same(sent, codes.decode_natural(reference, first, n))


def test_exponents_at_both_ends() -> None:
    """Numbers too small for an exponent, the largest ones, and what is no number, with and without a sign."""
    x = torch.tensor([0.0, 1e-45, 1e-38, 1.17549435e-38, 1.7e38, 3.3e38, float("inf"), float("nan")], device=DEVICE)
    x = torch.cat([x, -x]).repeat(20)
    message = encoded("encode_natural", [x], None, [5])
    assert same(gpu.decode_natural(message, 320), codes.decode_natural(reference, message, 320))


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 17, 256])
def test_votes(workers: int) -> None:
    """Rows that begin at any byte, of any length, and views of some of their bytes."""
    draw = torch.Generator().manual_seed(workers)
    sizes = [1, 2085] if workers < 9 else [33]
    for size in sizes:
        rows = torch.randint(0, 256, (workers, size), generator=draw, dtype=torch.uint8).to(DEVICE)
        views = (rows, rows[:, 1:], rows[:, 3 : size - 2]) if workers in (3, 8) else (rows,)
        for some in views:
            with poisoned():
                found = gpu.vote(some)
            ones = reference.signs.unpack_signs(some, 8 * some.shape[1]).sum(dim=0)
            assert same(found, reference.vote(some))
            assert same(found, reference.pack_signs((2 * ones - workers).float()))
    tie = torch.tensor([[1], [2]], dtype=torch.uint8, device=DEVICE)
    assert gpu.vote(tie).tolist() == [3]


@pytest.mark.parametrize("kind", KINDS)
def test_signs_as_bits(kind: str) -> None:
    for n in (1, 9, 4096, 4099):
        x = tensor(kind, n)
        for some in (x, misaligned(x), x[::2]):
            with poisoned():
                found = gpu.pack_signs(some)
            assert same(found, reference.pack_signs(some))


@pytest.mark.parametrize("n", [1, 9, 4096, 5001])
def test_bits_as_signs(n: int) -> None:
    bits = torch.randint(0, 256, (-(-n // 8) + 1,), generator=torch.Generator().manual_seed(n), dtype=torch.uint8)
    bits = bits.to(DEVICE)
    for some in (bits[:-1], bits[1:]):
        with poisoned():
            found = gpu.signs_of(some, n)
        assert same(found, codes.signs_of(reference, some, n))


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("kind", "n"), [("normal", 1), ("heavy", 4101), ("sparse", 7), ("constant", 4096), ("zero", 9)]
)
def test_ternaries(kind: str, n: int) -> None:
    x, room = tensor(kind, n, n), 8 * -(-n // 8) + 8
    scale = x.abs().max().view(1)
    with poisoned():
        packed = gpu.encode_ternaries(x, scale, 77, room)
        sent = gpu.ternaries_of(packed, scale, n)
    assert same(packed, codes.encode_ternaries(reference, x, scale, 77, room))
    assert same(sent, reference.ternaries_of(packed, scale, n))
    for workers in (1, 3, 17):
        rows = torch.stack([packed, packed.flip(0), packed])[torch.arange(workers, device=DEVICE) % 3]
        with poisoned():
            total = gpu.sum_of_digits(rows, n)
        assert same(total, reference.sum_of_digits(rows, n))


def test_digits_of_many_rows_and_of_parts_of_rows() -> None:
    rows = torch.full((100, 9), 0b11100100, dtype=torch.uint8, device=DEVICE)
    assert same(gpu.sum_of_digits(rows, 30), reference.sum_of_digits(rows, 30))
    assert same(gpu.sum_of_digits(rows[:85, 3:], 21), reference.sum_of_digits(rows[:85, 3:], 21))


ENCODERS: dict[str, Callable[[list[Tensor]], tuple[Any, ...]]] = {
    "encode_trits": lambda xs: (1.5,),
    "encode_columns": lambda xs: ([3 if x.numel() % 3 == 0 else 1 for x in xs],),
    "encode_natural": lambda xs: (list(range(len(xs))),),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ENCODERS)
def test_tensors_may_begin_anywhere(name: str) -> None:
    for lengths in ([2565], [1, 7, 64]):
        xs = [misaligned(tensor("heavy", n, n), 1 + n % 3) for n in lengths]
        errors = [misaligned(tensor("normal", n, 2)) for n in lengths]
        encoded(name, xs, errors, *ENCODERS[name](xs))


@pytest.mark.parametrize("name", ENCODERS)
def test_what_bodies_do_not_take_goes_to_the_reference(name: str) -> None:
    x = tensor("normal", 30)[::2]
    encoded(name, [x], None, *ENCODERS[name]([x]))


@pytest.mark.long
@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=3), st.integers(1, 5))
def test_lists_of_any_lengths(lengths: list[int], workers: int) -> None:
    xs = [tensor("normal", n, n) for n in lengths]
    for name, mean in (("encode_trits", "mean_of_trits"), ("encode_natural", "mean_of_natural")):
        message = encoded(name, xs, None, *ENCODERS[name](xs))
        averaged(mean, message.expand(workers, -1).contiguous(), lengths)


def test_five_stretches_lie_as_the_paper_says() -> None:
    digits = torch.tensor([1, -1, 0, 1, 0, 0, -1, 1, 1, -1, 1], dtype=torch.int8)
    packed = reference.trits.pack_trits(digits)
    rows = np.pad(digits.numpy() + 1, (0, 4), constant_values=1).reshape(5, 3)
    assert packed.tolist() == (np.array([81, 27, 9, 3, 1]) @ rows).tolist()
    assert torch.equal(reference.trits.unpack_trits(packed, 11), digits)
