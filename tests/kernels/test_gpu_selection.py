"""Selection in Triton against the reference, bit by bit."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import messages, reference
from laconic.kernels.gpu import limits, selection, topk
from tests.kernels.on import DEVICE, KINDS, gpu, misaligned, poisoned, same, tensor

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # an infinite number less itself
LENGTHS = [1, 7, 2048, 5001]
KEY = (1 << 63) + 77


def equal(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


def on_device(x: float) -> torch.Tensor:
    return torch.tensor(x, device=DEVICE)


# ---------------------------------------------------------------------------------------------- thresholds


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_is_the_references(kind: str) -> None:
    for n in LENGTHS:
        x = tensor(kind, n)
        with poisoned():
            found = gpu.select(x, 1.5), gpu.passing(x, on_device(0.9))
        assert equal(found[0], reference.select(x, 1.5))
        assert equal(found[1], messages.passing(reference, x, 0.9))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_keeps_what_did_not_pass(kind: str) -> None:
    for n in LENGTHS:
        x, error = tensor(kind, n), 0.1 * tensor("normal", n, 9)
        expected = error.clone()
        with poisoned():
            found = gpu.feed_selected(x, error, 1.5)
        assert equal(found, messages.feed_selected(reference, x, expected, 1.5)) and same(error, expected)


@pytest.mark.long
@pytest.mark.parametrize("fed", [True, False])
def test_a_list_is_done_as_its_tensors_are(fed: bool) -> None:
    xs = [
        misaligned(tensor(kind, n, n), n % 4) for kind, n in zip(KINDS, [5001, 1, 2048, 7, 3000, 4096, 2], strict=True)
    ]
    errors = [misaligned(tensor("normal", x.numel(), 2), 1) for x in xs]
    expected = [error.clone() for error in errors]
    thresholds = [1.5, on_device(0.5), 0.1, 1.0, 2.0, 2.5, 0.3]
    with poisoned():
        found = gpu.feed_selected_each(xs, errors, thresholds) if fed else gpu.passing_each(xs, thresholds)
    if fed:
        assert equal(errors, expected) is False
        others = messages.feed_selected_each(reference, xs, expected, thresholds)
        assert equal(errors, expected)
    else:
        others = messages.passing_each(reference, xs, thresholds)
    assert all(equal(a, b) for a, b in zip(found, others, strict=True))
    assert all(equal(a, b) for a, b in zip(gpu.passing_each(xs, on_device(0.5).repeat(7)), [
        messages.passing(reference, x, 0.5) for x in xs
    ], strict=True))  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("listed", [True, False])
def test_what_finds_no_room_is_done_again(monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    """What passes lies in one place, and is more than there is room for: some tiles find it, others do not."""
    monkeypatch.setattr(selection, "_MORE", 2500)
    xs = [tensor("normal", 6000, 3), tensor("normal", 1000, 4)][: 1 + listed]
    xs[0][:5000] += 9
    xs[0][5] = torch.nan
    errors = [0.1 * tensor("normal", x.numel(), 5) for x in xs]
    expected = [error.clone() for error in errors]
    thresholds = [4.0] * len(xs)
    with poisoned():
        plain, fed = gpu.passing_each(xs, thresholds), gpu.feed_selected_each(xs, errors, thresholds)
    assert all(equal(a, b) for a, b in zip(plain, messages.passing_each(reference, xs, thresholds), strict=True))
    others = messages.feed_selected_each(reference, xs, expected, thresholds)
    assert all(equal(a, b) for a, b in zip(fed, others, strict=True)) and equal(errors, expected)


@pytest.mark.long
@pytest.mark.parametrize("passing", [3, 300])
def test_a_tile_has_places_of_its_own_and_asks_for_more(passing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few everywhere, and many in one place; more tiles than one program moves."""
    monkeypatch.setattr(selection, "_TILE", 512)
    x = tensor("normal", 35_001, 6)
    x[20_000 : 20_000 + passing] += 20
    with poisoned():
        assert equal(gpu.select(x, 2.5), reference.select(x, 2.5))


@pytest.mark.long
def test_a_threshold_that_all_or_none_pass() -> None:
    x = tensor("infinite", 1001)
    for threshold in (0.0, -1.0, torch.inf, torch.nan):
        assert equal(gpu.select(x, threshold), reference.select(x, threshold))
        assert equal(gpu.passing(x, threshold), (p := torch.nonzero(~(x.abs() < threshold)).view(-1), x[p]))


def test_other_inputs_go_to_the_reference() -> None:
    double, strided = tensor("normal", 100).double(), tensor("normal", 100)[::2]
    for x in (double, strided, tensor("normal", 1)[:0]):
        error = torch.zeros_like(x)
        assert equal(gpu.select(x, 1.0), reference.select(x, 1.0))
        assert equal(gpu.feed_selected(x, error, 1.0), gpu.passing(x, 1.0))
    assert same(gpu.sampled_limit(double, None, 10, 3, 0), reference.sampled_limit(double, None, 10, 3, 0))
    assert same(gpu.largest(strided, 3), reference.largest(strided, 3))


# ---------------------------------------------------------------------------------------------- estimates


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("few", [1024, 16384])
def test_a_limit_is_the_samples_k_th_largest(kind: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one program where there are few, digit by digit where there are more; of all where no more were asked for."""
    monkeypatch.setattr(limits, "FEW", few)
    for n, count, k in ((1, 1, 1), (5001, 1500, 30), (5001, 1500, 1500), (1200, 9000, 7)):
        x, error = tensor(kind, n), misaligned(0.1 * tensor("normal", n, 9))
        for memory in (None, error)[n > 5000 :]:
            with poisoned():
                found = gpu.sampled_limit(x, memory, count, k, KEY)
            assert same(found, reference.sampled_limit(x, memory, count, k, KEY))


# ---------------------------------------------------------------------------------------------- the largest


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_are_the_references(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "_LEAST", 1)
    for n, k in ((20_000, 200), (7, 2), (100, 100)):
        x = tensor(kind, n)
        with poisoned():
            found = gpu.largest(x, k)
        assert same(found, reference.largest(x, k))


@pytest.mark.long
@pytest.mark.parametrize(("n", "k", "grid"), [
    (20_001, 1, 1e-9), (20_001, 700, 1e-9), (20_001, 700, 0.25), (3000, 100, 0.1), (20_001, 700, 3.0),
])  # fmt: skip
def test_the_largest_are_found_among_candidates(n: int, k: int, grid: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ties at the limit; the reference is asked only where too many values are the same."""
    x = misaligned((tensor("normal", n, k) / grid).round() * grid)
    expected = reference.largest(x, k)
    monkeypatch.setattr(topk, "_LEAST", 1)
    if grid < 1:
        monkeypatch.setattr(reference, "largest", None)
    assert same(gpu.largest(x, k), expected)


# ---------------------------------------------------------------------------------------------- means


def sparse(n: int, share: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    places = torch.nonzero(torch.rand(n, generator=draw) < share).view(-1).to(DEVICE)
    return places, misaligned(tensor("heavy", places.numel(), seed))


@pytest.mark.long
@pytest.mark.parametrize("left_out", [0.0, -0.0])
@pytest.mark.parametrize("n", [1, 4096, 5001])
def test_means_of_sparse_vectors_are_the_references(n: int, left_out: float) -> None:
    for shares in ([0.01], [0.2, 0.0, 0.1], [0.01] * 5, [1.0, 0.02], [0.0, 0.0]):
        sent = [sparse(n, share, seed) for seed, share in enumerate(shares)]
        places, values = [p for p, _ in sent], [v for _, v in sent]
        for number, value in enumerate((torch.inf, torch.nan, -0.0, 1e-42)):
            values[0][3 * number : 3 * number + 1] = value
        with poisoned():
            found = gpu.mean_of_sparse(places, values, n, left_out)
        expected = reference.mean_of_sparse(places, values, n, left_out)
        assert same(found, expected)
        assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())


@pytest.mark.long
def test_a_mean_is_the_one_of_dense_vectors_in_the_order_of_workers() -> None:
    sent = [sparse(5000, 0.4, seed) for seed in range(5)]
    total = torch.zeros(5000, device=DEVICE)
    for places, values in sent:
        total += torch.zeros(5000, device=DEVICE).index_put_((places,), values)
    found = gpu.mean_of_sparse([p for p, _ in sent], [v for _, v in sent], 5000, 0.0)
    assert same(found, total / torch.tensor(5.0, device=DEVICE))
