"""Means of sparse vectors in Triton against the reference, bit by bit."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import reference
from laconic.kernels.gpu import sparse_means
from tests.kernels.on import DEVICE, gpu, misaligned, poisoned, same, tensor

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # an infinite number less itself
SparseTensors = tuple[list[torch.Tensor], list[torch.Tensor]]


def sparse(n: int, shares: list[float]) -> SparseTensors:
    places, values = [], []
    for seed, share in enumerate(shares):
        draw = torch.Generator().manual_seed(seed)
        places.append(torch.nonzero(torch.rand(n, generator=draw) < share).view(-1).to(DEVICE))
        values.append(misaligned(tensor("heavy", places[-1].numel(), seed)))
    for number, value in enumerate((torch.inf, torch.nan, -0.0, 1e-42)):
        values[0][3 * number : 3 * number + 1] = value
    return places, values


def right(sent: SparseTensors, n: int, left_out: float) -> bool:
    with poisoned():
        found = gpu.mean_of_sparse(*sent, n, left_out)
    expected = reference.mean_of_sparse(*sent, n, left_out)
    signs = torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())
    return signs and same(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("left_out", [0.0, -0.0])
@pytest.mark.parametrize("shares", [[0.01], [0.02, 0.0, 0.01], [0.01] * 8, [0.3, 0.01, 0.1], [0.0, 0.0], [1.0, 0.02]])
def test_means_are_the_references(shares: list[float], left_out: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of places that few or many workers name, in tiles of which a worker's places are read at once or in parts."""
    for n in (1, 2048, 3001):
        sent = sparse(n, shares)
        for width in (16, 128):
            monkeypatch.setattr(sparse_means, "_WIDTH", width)
            assert right(sent, n, left_out), (n, width)


@pytest.mark.long
@pytest.mark.parametrize("tiles", [(512, 512), (512, 8192)])
def test_many_workers_divide_all_that_they_added(tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_means, "_TILES", tiles)
    monkeypatch.setattr(sparse_means, "_FEW", 2)
    assert right(sparse(3001, [0.01, 0.0, 0.2, 0.01, 0.02]), 3001, -0.0)


@pytest.mark.long
def test_more_workers_than_few() -> None:
    assert right(sparse(2500, [0.01, 0.02] * 8 + [0.05]), 2500, 0.0)


@pytest.mark.parametrize("count", [31, 32, 33, 127, 128, 129, 300])
def test_a_tile_may_hold_many_places(count: int) -> None:
    """All in the first tile, and some in the third, in which the count goes on."""
    n = 3500
    places = [torch.cat([torch.arange(count) + 5, torch.arange(2000, 2000 + k)]).to(DEVICE) for k in (3, 40)]
    assert right((places, [tensor("normal", p.numel(), 1) for p in places]), n, 0.0)


def test_nothing_is_written_outside_whatever_a_message_says() -> None:
    """Places that descend, are below zero or behind the end: the mean is any, but its neighbours stay."""
    n, far = 1500, 1 << 40
    room = torch.full((4 << 10,), 7.0, device=DEVICE)
    places = [torch.tensor(p, device=DEVICE) for p in ([-far, -1, 3, 1499, 1500, 1501, far], [1200, 3, 2047, 5, -2048])]
    values = [tensor("normal", p.numel(), 1) for p in places]
    empty = torch.empty
    try:
        torch.empty = lambda *size, **how: room[1024 : 1024 + n] if size == (n,) else empty(*size, **how)
        found = gpu.mean_of_sparse(places, values, n, 0.0)
    finally:
        torch.empty = empty
    assert found.data_ptr() == room[1024:].data_ptr()
    assert torch.all(room[:1024] == 7) and torch.all(room[1024 + n :] == 7)


@pytest.mark.long
def test_a_mean_is_the_one_of_dense_vectors_in_the_order_of_workers() -> None:
    places, values = sparse(3000, [0.4] * 5)
    total = torch.zeros(3000, device=DEVICE)
    for where, sent in zip(places, values, strict=True):
        total += torch.zeros(3000, device=DEVICE).index_put_((where,), sent)
    assert same(gpu.mean_of_sparse(places, values, 3000, 0.0), total / torch.tensor(5.0, device=DEVICE))
