"""Codes lose nothing, and are as long as they declare."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.compression.codes import bits, golomb, places, trits


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 20), st.integers(0, 200), st.integers(0, 10_000))
def test_bits(width: int, count: int, seed: int) -> None:
    codes = torch.randint(0, 1 << width, (count,), generator=torch.Generator().manual_seed(seed))
    packed = bits.pack(codes, width)
    assert packed.numel() == bits.length(count, width)
    assert torch.equal(bits.unpack(packed, width, count).long(), codes)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([-1, 0, 0, 0, 0, 0, 0, 0, 0, 1]), max_size=400))
def test_trits_and_runs_of_zeros(digits: list[int]) -> None:
    x = torch.tensor(digits, dtype=torch.int8)
    packed = trits.pack(x)
    assert packed.numel() == trits.length(len(digits))
    short = trits.shorten(packed)
    assert short.numel() <= packed.numel()
    assert torch.equal(trits.unpack(trits.lengthen(short), len(digits)), x)


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(st.integers(1, 5000), st.data())
def test_golomb(numel: int, data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, numel - 1), min_size=1, max_size=min(numel, 60))))
    behind = torch.tensor([7, 8, 9], dtype=torch.uint8)
    written = golomb.write(torch.tensor(places), numel)
    assert written.numel() <= golomb.most(len(places), numel)
    found, length = golomb.read(torch.cat([written, behind]), len(places), numel)
    assert found.tolist() == places and length == written.numel()


def test_golomb_is_near_the_entropy_of_random_places() -> None:
    n, k = 1_000_000, 10_000
    places = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:k].sort().values
    p = k / n
    entropy = n * (-p * math.log2(p) - (1 - p) * math.log2(1 - p))
    assert 8 * golomb.write(places, n).numel() <= 1.03 * entropy < k * bits.width(n - 1)


@pytest.mark.parametrize("code", places.PLACES)
@pytest.mark.parametrize(("numel", "k"), [(1, 1), (37, 5), (64, 64), (1000, 9)])
def test_places_are_read_as_they_were_written_and_what_follows_stays(code: str, numel: int, k: int) -> None:
    chosen = torch.randperm(numel, generator=torch.Generator().manual_seed(numel))[:k].sort().values
    behind = torch.tensor([7, 0, 255], dtype=torch.uint8)
    written = places.write(code, chosen, numel)
    assert written.numel() <= places.most(code, k, numel)
    read, rest = places.read(code, torch.cat([written, behind]), k, numel)
    assert torch.equal(read, chosen) and torch.equal(rest, behind)
