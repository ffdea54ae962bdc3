"""Messages of chosen places in Triton against those of one tensor after another, bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.bucket import RecordedKeys
from laconic.kernels import reference, sparse_messages
from laconic.kernels.gpu import numbers, radix
from laconic.kernels.gpu import sparse_messages as encoders
from tests.kernels.on import DEVICE, gpu, misaligned, poisoned, same, tensor

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # an infinite number less itself

TENSORS = [
    ("normal", 1), ("heavy", 9001), ("constant", 4097), ("zero", 4096), ("nan", 700), ("infinite", 5000), ("sparse", 2),
    ("normal", 8192), ("rounded", 6000), ("nans", 4500),
]  # fmt: skip

OTHERS = [(0.01, True), (1.0, True), (0.01, False), (0.3, False)]


def made(kind: str, n: int, seed: int) -> Tensor:
    if kind == "rounded":  # as a bf16 product leaves them: many ties
        return tensor("normal", n, seed).bfloat16().float()
    if kind == "nans":
        x = tensor("constant", n, seed)
        x[::7], x[3::50] = torch.nan, -torch.inf
        return x
    return tensor(kind, n, seed)


def inputs(fed: bool) -> tuple[list[Tensor], list[Tensor] | None]:
    xs = [misaligned(made(kind, n, i), i % 4) for i, (kind, n) in enumerate(TENSORS)]
    exact = [kind in ("constant", "zero", "rounded", "nans") for kind, _ in TENSORS]  # ties stay ties
    errors = [misaligned(tensor("zero" if z else "normal", x.numel()), 3) for x, z in zip(xs, exact, strict=True)]
    return xs, errors if fed else None


def copies(tensors: list[Tensor] | None) -> list[Tensor] | None:
    return None if tensors is None else [x.clone() for x in tensors]


def widths_of(xs: list[Tensor]) -> list[int]:
    return [32 if i % 4 == 3 else max(1, (x.numel() - 1).bit_length()) for i, x in enumerate(xs)]


def equal(found: list[Tensor] | None, expected: list[Tensor] | None) -> bool:
    return found is expected is None or all(
        same(a, b) and torch.equal(a.signbit(), b.signbit()) for a, b in zip(found, expected, strict=True)
    )


# ---------------------------------------------------------------------------------------------- the largest


@pytest.mark.parametrize(
    ("ratio", "fed"), [(0.3, True), *(pytest.param(*each, marks=pytest.mark.long) for each in OTHERS)]
)
def test_the_largest_of_a_list_are_the_references(ratio: float, fed: bool) -> None:
    """Ties, zeros, what is not finite, tensors of one element, and all elements."""
    xs, errors = inputs(fed)
    counts, widths = [max(1, int(ratio * x.numel())) for x in xs], widths_of(xs)
    memory, given = copies(errors), copies(xs)
    with poisoned():
        found = gpu.encode_largest(xs, errors, counts, widths)
    assert torch.equal(found, sparse_messages.encode_largest(reference, xs, memory, counts, widths))
    assert equal(errors, memory) and equal(xs, given)


@pytest.mark.parametrize(("n", "programs"), [(1, 1024), (4099, 1024), (4099, 1)])
def test_one_tensor_is_a_list(n: int, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in one program or in several."""
    monkeypatch.setattr(radix, "_PROGRAMS", programs)
    x, error = tensor("normal", n), tensor("normal", n, 1)
    memory = error.clone()
    found = gpu.encode_largest([x], [error], [-(-n // 50)], [13])
    assert torch.equal(found, sparse_messages.encode_largest(reference, [x], [memory], [-(-n // 50)], [13]))
    assert same(error, memory)


@pytest.mark.long
def test_tallies_of_many_tiles_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles than are in one group, of tensors that begin within a group."""
    monkeypatch.setattr(radix, "TILE", 128)
    monkeypatch.setattr(radix, "_PROGRAMS", 8)
    xs = [misaligned((tensor("normal", n, n) / 0.1).round() * 0.1, 1) for n in (3000, 1, 9000, 700)]
    counts, widths = [40, 1, 900, 7], widths_of(xs)
    found = gpu.encode_largest(xs, None, counts, widths)
    assert torch.equal(found, sparse_messages.encode_largest(reference, xs, None, counts, widths))


def test_other_inputs_go_to_the_reference() -> None:
    for x in (tensor("normal", 100)[::2], tensor("normal", 1)[:0]):
        count = min(3, x.numel())
        assert torch.equal(
            gpu.encode_largest([x], None, [count], [7]),
            sparse_messages.encode_largest(reference, [x], None, [count], [7]),
        )


# ---------------------------------------------------------------------------------------------- by a sampled limit


@pytest.mark.parametrize(("looked", "fed"), [(300, True), (5000, False)])
@pytest.mark.long
def test_what_passes_sampled_limits_is_the_references(looked: int, fed: bool) -> None:
    """Too many that are equal, too many with NaN among them, none, and samples of more than one tile."""
    xs, errors = inputs(fed)
    samples = [(looked, max(1, int(0.02 * min(looked, x.numel())))) for x in xs]
    most, widths = [max(1, x.numel() // 30) for x in xs], widths_of(xs)
    keys = [(1 << 63) + 77 * i for i in range(len(xs))]
    memory, given = copies(errors), copies(xs)
    with poisoned():
        found = gpu.encode_sampled(xs, errors, samples, most, widths, keys)
    expected = sparse_messages.encode_sampled(reference, xs, memory, samples, most, widths, keys)
    assert torch.equal(found, expected)
    assert equal(errors, memory) and equal(xs, given)
    sizes = [sparse_messages.part_bytes(count, width, True) for count, width in zip(most, widths, strict=True)]
    counts = [int(part[:4].clone().view(torch.int32)) for part in expected.split(sizes)]
    assert counts[3] == 0 and counts[2] == most[2] > 1  # nothing passes of zeros, and too much of equal values


def test_a_sampled_limit_of_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "_TILE", 1024)
    monkeypatch.setattr(encoders, "_ROWS", 4)
    x = tensor("heavy", 9000)
    for few in (90, 270):
        found = gpu.encode_sampled([x], None, [(1000, 20)], [few], [14], [5])
        assert torch.equal(found, sparse_messages.encode_sampled(reference, [x], None, [(1000, 20)], [few], [14], [5]))


@pytest.mark.long
def test_runs_of_many_tiles_are_moved_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles than are in one group or moved by one program, and tiles of which all values pass, which have no
    places for so many; more pass than are sent: the first, or the largest where one of them is NaN."""
    monkeypatch.setattr(encoders, "_TILE", 64)
    monkeypatch.setattr(encoders, "_ROWS", 4)
    xs = [misaligned(tensor("normal", n, n), 1) for n in (700, 1, 6000, 100)]
    for start in (130, 3000, 3031, 5500):
        xs[2][start : start + 100] *= 50
    xs[0][600] = torch.nan
    errors = [torch.ones_like(x) for x in xs]
    samples, most, keys = [(300, 9), (300, 1), (300, 15), (300, 3)], [9, 1, 200, 9], [7, 8, 9, 10]
    memory, widths = copies(errors), widths_of(xs)
    found = gpu.encode_sampled(xs, errors, samples, most, widths, keys)
    assert torch.equal(found, sparse_messages.encode_sampled(reference, xs, memory, samples, most, widths, keys))
    assert equal(errors, memory)


# ---------------------------------------------------------------------------------------------- means


@pytest.mark.parametrize(("workers", "left_out"), [(3, -0.0), pytest.param(1, 0.0, marks=pytest.mark.long)])
def test_means_of_lists_are_the_references(workers: int, left_out: float) -> None:
    sent, lengths = [], [n for _, n in TENSORS]
    counts = [max(1, n // 40) for n in lengths]
    for seed in range(workers):
        xs = [made(kind, n, 10 * seed + i) for i, (kind, n) in enumerate(TENSORS)]
        sent.append(sparse_messages.encode_largest(reference, xs, None, counts, widths_of(xs)))
    rows, widths = torch.stack(sent), widths_of(xs)
    found, expected = torch.full((2, sum(lengths)), torch.nan, device=DEVICE)
    gpu.average_places(found, rows, lengths, counts, widths, False, left_out)
    sparse_messages.average_places(reference, expected, rows, lengths, counts, widths, False, left_out)
    assert same(found, expected) and torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())


@pytest.mark.parametrize("zero", [False, pytest.param(True, marks=pytest.mark.long)])
def test_means_of_counted_places_are_the_references(zero: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are counted in blocks and read in tiles, more than one of each."""
    monkeypatch.setattr(numbers, "_PROGRAMS", 2)
    monkeypatch.setattr(numbers, "_TILE", 32)
    monkeypatch.setattr(numbers, "_BLOCK", 4)
    tensors = [(kind, -(-n // 4)) for kind, n in TENSORS]
    rows, lengths = [], [n for _, n in tensors]
    most = [-(-n // 20) for n in lengths]
    for seed in range(3):
        xs = [made(kind, n, 10 * seed + i) for i, (kind, n) in enumerate(tensors)]
        if zero:
            xs = [torch.zeros_like(x) for x in xs]
        given = [(500, max(1, min(500, n) // 50)) for n in lengths], most, widths_of(xs)
        rows.append(sparse_messages.encode_sampled(reference, xs, None, *given, [seed] * len(xs)))
    found, expected = torch.full((2, sum(lengths)), torch.nan, device=DEVICE)
    with poisoned():
        gpu.average_places(found, torch.stack(rows), lengths, most, widths_of(xs), True, 0.0)
    sparse_messages.average_places(reference, expected, torch.stack(rows), lengths, most, widths_of(xs), True, 0.0)
    assert same(found, expected)


@pytest.mark.parametrize("tensors", [3, 1])
@pytest.mark.long
def test_after_the_first_call_nothing_comes_from_the_host(tensors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph would copy again, in every replay, from memory that has long been something else."""
    xs = kernels.TensorList(tensor("normal", n, n) for n in (3000, 70, 500)[:tensors])
    errors, total = kernels.TensorList(torch.zeros_like(x) for x in xs), torch.empty(sum(xs.lengths), device=DEVICE)
    samples, most, widths = [(300, 9)] * tensors, [30, 2, 5][:tensors], [12] * tensors
    keys = RecordedKeys(torch.arange(tensors, device=DEVICE))

    def exchanged() -> None:
        for counted in (True, False):
            if counted:
                message = gpu.encode_sampled(xs, errors, samples, most, widths, keys)
            else:
                message = gpu.encode_largest(xs, errors, most, widths)
            gpu.average_places(total, torch.stack([message] * 3), xs.lengths, most, widths, counted, 0.0)

    exchanged()
    monkeypatch.setattr(torch, "tensor", _refused)
    monkeypatch.setattr(torch, "from_numpy", _refused)
    exchanged()


def _refused(*_: object, **__: object) -> Tensor:
    raise AssertionError("the host's memory is copied")


# ---------------------------------------------------------------------------------------------- whole numbers


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 7, 8, 9, 13, 17, 24, 31, 32])
def test_whole_numbers_of_any_width(bits: int) -> None:
    for n in (1, 3, 1000, 1025):
        codes = torch.randint(0, 1 << bits, (n,), generator=torch.Generator().manual_seed(n)).to(DEVICE)
        with poisoned():
            packed = gpu.pack_numbers(codes, bits)
            found = gpu.unpack_numbers(packed, bits, n)
        assert torch.equal(packed, reference.pack_numbers(codes, bits))
        assert same(found, reference.unpack_numbers(packed, bits, n)) and torch.equal(found, codes)
