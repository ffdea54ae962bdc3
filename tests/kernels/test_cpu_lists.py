"""Lists of tensors in one compiled call on a CPU: the bytes and bits that one tensor after another gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laconic import kernels
from laconic.kernels import TensorList, messages, reference, sparse_messages
from tests.kernels.test_bodies import KINDS, same, tensor

cpu = pytest.importorskip("laconic.kernels.cpu", reason="without Numba there is only the reference")

LENGTHS = (1, 7, 8, 9, 512, 513, 1023, 1025, 4097, 70_001)


def inputs(kind: str) -> tuple[TensorList, TensorList]:
    """One tensor of each length, side by side at odd places, and memories of them that lie elsewhere."""
    whole = torch.cat([tensor(kind, n, n) for n in LENGTHS])
    memories = [0.1 * tensor("normal", n, n + 1) for n in LENGTHS]
    return TensorList(whole.split(LENGTHS)), TensorList(memories)


def copies(xs: TensorList) -> TensorList:
    return TensorList(x.clone() for x in xs)


def all_same(found: list[Tensor] | TensorList, expected: list[Tensor] | TensorList) -> bool:
    return len(found) == len(expected) and all(map(same, found, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_signs_of_a_list(kind: str) -> None:
    xs, errors = inputs(kind)
    kept, expected = copies(errors), copies(errors)
    message = cpu.encode_signs(xs, kept)
    assert same(message, messages.encode_signs(reference, xs, expected))
    assert all_same(kept, expected)
    other = messages.encode_signs(reference, expected, copies(errors))
    rows = torch.stack([message, other, message])
    assert all_same(cpu.mean_of_signs(rows, LENGTHS), messages.mean_of_signs(reference, rows, LENGTHS))


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize(("steps", "bucket"), [(1, 512), (7, 512), (7, 99), (127, 2048), (127, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_a_list(kind: str, steps: int, bucket: int, norm: str, remembers: bool) -> None:
    xs, errors = inputs(kind)
    kept, expected = (copies(errors), copies(errors)) if remembers else (None, None)
    keys = [2**64 - 1 - 977 * n**3 for n in LENGTHS]
    how = (bucket, steps, norm)
    message = cpu.encode_levels(xs, kept, *how, keys)
    assert same(message, messages.encode_levels(reference, xs, expected, *how, keys))
    if kept is not None and expected is not None:
        assert all_same(kept, expected)
    rows = torch.stack([message, messages.encode_levels(reference, errors, None, *how, keys), message])
    found = cpu.mean_of_levels(rows, LENGTHS, bucket, steps)
    assert all_same(found, messages.mean_of_levels(reference, rows, LENGTHS, bucket, steps))


@pytest.mark.parametrize("steps", [1, 7])
def test_shares_are_counted_and_means_are_written_where_they_are_wanted(steps: int) -> None:
    xs, errors = inputs("heavy")
    shares, keys = [1 / n for n in range(1, 1 + len(LENGTHS))], [7 * n for n in LENGTHS]
    kept, expected = copies(errors), copies(errors)
    message = kernels.encode_levels(xs, kept, 512, steps, "l2", keys, shares)
    assert same(message, messages.encode_levels(reference, xs, expected, 512, steps, "l2", keys, shares))
    assert all_same(kept, expected)
    rows, out = torch.stack([message, message]), copies(xs)
    kernels.mean_of_levels(rows, LENGTHS, 512, steps, out, shares)
    assert all_same(out, messages.mean_of_levels(reference, rows, LENGTHS, 512, steps, None, shares))
    rows = kernels.encode_signs(xs, kept)[None]
    kernels.mean_of_signs(rows, LENGTHS, out)
    assert all_same(out, messages.mean_of_signs(reference, rows, LENGTHS))


def test_a_list_of_another_type_or_layout_goes_one_by_one() -> None:
    """The compiled call reads float32 at the tensors' addresses; where that is not what lies there it must not run."""
    x = torch.randn(2, 4096)
    strided = TensorList([x.t().reshape(-1)[::2], x[1]])
    errors = TensorList(torch.zeros(len(x)) for x in strided)
    expected = copies(errors)
    found = kernels.encode_signs(strided, errors)
    assert same(found, messages.encode_signs(reference, strided, expected)) and all_same(errors, expected)


COUNTS = (1, 1, 3, 9, 6, 200, 1, 11, 41, 701)
WIDTHS = (1, 3, 3, 4, 9, 10, 10, 32, 13, 17)


@pytest.mark.parametrize("left_out", [0.0, -0.0])
@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "infinities"])
def test_the_largest_of_a_list(kind: str, remembers: bool, left_out: float) -> None:
    xs, errors = inputs(kind) if kind != "infinities" else (TensorList(torch.inf * x for x in inputs("heavy")[0]),) * 2
    kept, expected = (copies(errors), copies(errors)) if remembers else (None, None)
    message = cpu.encode_largest(xs, kept, COUNTS, WIDTHS)
    assert same(message, sparse_messages.encode_largest(reference, xs, expected, COUNTS, WIDTHS))
    if kept is not None and expected is not None:
        assert all_same(kept, expected)
    rows = torch.stack([message, sparse_messages.encode_largest(reference, errors, None, COUNTS, WIDTHS), message])
    found, total = torch.empty(2, sum(LENGTHS))
    cpu.average_places(found, rows, LENGTHS, COUNTS, WIDTHS, False, left_out)
    sparse_messages.average_places(reference, total, rows, LENGTHS, COUNTS, WIDTHS, False, left_out)
    assert same(found, total) and torch.equal(found.signbit() | found.isnan(), total.signbit() | total.isnan())


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_sampled_limits_of_a_list(kind: str, remembers: bool) -> None:
    """Samples are shorter and longer than the tensors, and `constant` has more equal values than may be sent."""
    xs, errors = inputs(kind)
    if kind == "constant":
        errors = TensorList(torch.zeros_like(x) for x in xs)
        errors[-1][500] = torch.nan
    kept, expected = (copies(errors), copies(errors)) if remembers else (None, None)
    samples = [(700, min(n, 700) // 20 + 1) for n in LENGTHS]
    most, keys = [-(-n // 10) for n in LENGTHS], [3**n % 2**64 for n in LENGTHS]
    how = (samples, most, WIDTHS, keys)
    message = cpu.encode_sampled(xs, kept, *how)
    assert same(message, sparse_messages.encode_sampled(reference, xs, expected, *how))
    if kept is not None and expected is not None:
        assert all_same(kept, expected)
    rows = torch.stack([message, sparse_messages.encode_sampled(reference, errors, None, *how)])
    found, total = torch.empty(2, sum(LENGTHS))
    cpu.average_places(found, rows, LENGTHS, most, WIDTHS, True, 0.0)
    sparse_messages.average_places(reference, total, rows, LENGTHS, most, WIDTHS, True, 0.0)
    assert same(found, total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wire", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("divisor", [1, 2, 3, 8])
def test_casts(kind: str, wire: torch.dtype, divisor: int) -> None:
    """Also where the quotient is subnormal or too large for the format, and where it is a tie."""
    x = torch.cat([tensor(kind, 5000) * 2.0**e for e in (-140, -24, -14, 0, 15, 16, 120)])
    x = torch.cat([x, torch.arange(8192) * 2.0**-25, 2049 + torch.arange(2048.0), torch.tensor([65519.9, 65520.0])])
    x = torch.cat([x, -x])
    found, expected = x.new_empty(len(x), dtype=wire), x.new_empty(len(x), dtype=wire)
    kernels.shorten(x.clone(), divisor, found)
    reference.shorten(x.clone(), divisor, expected)
    assert same(found.float(), expected.float()) and torch.equal(
        found.signbit() & (x == x), expected.signbit() & (x == x)
    )
    wide = torch.empty(len(x))
    kernels.lengthen(found, wide)
    assert same(wide, found.float())
