"""Streams: dense exactly beyond delta, never longer than dense, and sums of any two of them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from laconic.collective.sparse.stream import DENSE, Stream, delta
from laconic.errors import ContractError
from tests.collective.sparse.running import vectors


@pytest.mark.technique("sparcml", check=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("numel", [0, 1, 2, 17, 30])
def test_a_stream_is_dense_exactly_beyond_delta(numel: int, dtype: torch.dtype) -> None:
    size = dtype.itemsize
    for count in range(numel + 1):
        (x,) = vectors([torch.randperm(numel)[:count]], numel, count, dtype)
        stream = Stream.of(x)
        assert stream.is_dense == (count > numel * size / (4 + size))
        assert torch.equal(stream.dense(), x)
        body = stream.body()
        assert len(body) == min(count * (4 + size), numel * size), "never longer than all values"
        again = Stream.read(stream.header, body, numel, dtype)
        assert torch.equal(again.dense(), x) and again.is_dense == stream.is_dense


def test_delta_of_float32_is_half() -> None:
    assert delta(100, 4) == 50 and delta(100, 8) == pytest.approx(200 / 3) and delta(100, 2, 2) == 50


@pytest.mark.technique("sparcml", check=2)
def test_sums_of_all_kinds_of_streams_are_exact_and_dense_beyond_delta() -> None:
    numel = 40
    for one, other in product([0, 1, 10, 20, 21, 40], repeat=2):
        for seed in (0, 1):
            draw = torch.Generator().manual_seed(seed)
            places = [torch.randperm(numel, generator=draw)[:k] for k in (one, other)]
            x, y = vectors(places, numel, seed)
            total = Stream.of(x) + Stream.of(y)
            assert torch.equal(total.dense(), x + y)
            assert torch.equal((Stream.of(y) + Stream.of(x)).dense(), total.dense())
            union = len(torch.cat(places).unique())
            assert total.is_dense == (max(one, other) > 20 or union > 20)
            assert total.header == (DENSE if total.is_dense else union), "a sum that is zero stays a pair"


def test_parts_of_a_stream_are_streams_of_the_part() -> None:
    (x,) = vectors([torch.arange(30, 47)], 100, 3)
    for stream in (Stream.of(x), Stream(100, x, None)):
        for begin, end in [(0, 30), (0, 31), (30, 47), (25, 60), (47, 100), (50, 50)]:
            part = stream.slice(begin, end)
            assert torch.equal(part.dense(), x[begin:end])
            assert part.is_dense == (int(x[begin:end].count_nonzero()) > (end - begin) / 2)


def test_a_body_of_another_length_is_refused() -> None:
    with pytest.raises(ContractError, match="12 bytes are not the body of a stream of 5 values with header 2"):
        Stream.read(2, torch.zeros(12, dtype=torch.uint8), 5, torch.float32)
