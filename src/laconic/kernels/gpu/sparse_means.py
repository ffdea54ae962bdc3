"""The mean of many workers' sparse messages, of a few places each, without a dense tensor for any of them.

First it is searched where each worker's places enter each tile of the mean. Then every program owns a tile: it adds
worker after worker in the mean itself, with a barrier between them, while it is in the cache, and fetches the next
worker's places meanwhile. Where few workers sent, means are written at their places alone, all at once: whoever sent
the same place writes the same mean. 4 bytes an element, and 8 or 12 for each place that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference

_WIDTH, _WARPS = 64, 1  # places that are read at once of a worker
_TILES = (512, 2048)  # the least and the largest number of elements of a tile: all that are summed fit into the cache
_SEARCHED, _SEARCH_WARPS = 128, 4  # bounds that a program searches
_PART = 1024  # elements that are divided at once
_MOST = (1 << 31) - (1 << 20)  # the largest number of elements
_FEW = 8  # workers whose means are written at their places: more would not fit in registers
_FAR = tl.constexpr((1 << 31) - 1)  # a place behind every tile


@triton.jit(do_not_specialize=["tiles", "steps"])
def _search(places, begins, counts, tiles, steps, bounds, TILE: tl.constexpr, BLOCK: tl.constexpr,
            STEP: tl.constexpr):  # fmt: skip
    """Find how many of a worker's places are before each tile, and before the end."""
    worker, tile = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places += STEP * tl.load(begins + worker)
    low = tl.zeros([BLOCK], tl.int32)
    high = low + tl.load(counts + worker).to(tl.int32)
    for _ in range(steps):
        middle = (low + high) >> 1
        open = low < high
        before = open & (tl.load(places + STEP * middle.to(tl.int64), mask=open, other=_FAR) < tile * TILE)
        low, high = tl.where(before, middle + 1, low), tl.where(before, high, middle)
    tl.store(bounds + worker.to(tl.int64) * (tiles + 1) + tile, low, mask=tile <= tiles)


@triton.jit
def _entries(places, values, at, end, base, limit, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """Return some of a worker's places in a tile, which of them are inside of it whatever the message holds, and the
    values there."""
    j = at + tl.arange(0, WIDTH)
    place = tl.load(places + STEP * j.to(tl.int64), mask=j < end, other=_FAR) - base
    return place, (place >= 0) & (place < limit), tl.load(values + j, mask=j < end, other=0.0)


@triton.jit
def _add(total, place, inside, value):
    tl.store(total + place, tl.load(total + place, mask=inside, other=0.0) + value, mask=inside)


@triton.jit
def _fill(total, left_out, limit, TILE: tl.constexpr, PART: tl.constexpr):
    if limit == TILE:
        tl.store(total + tl.arange(0, TILE), tl.full([TILE], left_out, tl.float32))
    else:
        for first in range(0, limit, PART):
            i = first + tl.arange(0, PART)
            tl.store(total + i, tl.full([PART], left_out, tl.float32), mask=i < limit)


@triton.jit
def _divided(sums, some, divisor):
    return tl.div_rn(tl.where(some, sums, 1.0), tl.zeros_like(sums) + divisor)


@triton.jit
def _divide_few(total, place, inside, divisor):
    """Write the means at the places that were sent, after all sums have been read."""
    sums = tl.load(total + place, mask=inside, other=0.0)
    tl.debug_barrier()
    tl.store(total + place, _divided(sums, inside, divisor), mask=inside)


@triton.jit
def _divide_all(total, limit, divisor, PART: tl.constexpr):
    for first in range(0, limit, PART):
        i = first + tl.arange(0, PART)
        sums = tl.load(total + i, mask=i < limit, other=0.0)
        some = (sums.to(tl.int32, bitcast=True) & 0x7FFFFFFF) != 0  # a zero stays what it is, and is slow to divide
        tl.store(total + i, _divided(sums, some, divisor), mask=some)


@triton.jit(do_not_specialize=["workers", "divisor", "n", "tiles"])
def _mean(places, values, begins, bounds, workers, divisor, total, n, tiles, left_out, TILE: tl.constexpr,
          WIDTH: tl.constexpr, PART: tl.constexpr, WORKERS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Compute a tile of the mean. WORKERS is how many there are at most, or 0 where they are not few."""
    tile = tl.program_id(0)
    base = tile * TILE
    limit = tl.minimum(n - base, TILE).to(tl.int32)
    total += base
    at, end = tl.load(bounds + tile), tl.load(bounds + tile + 1)
    own_places, own_values = places + STEP * tl.load(begins), values + tl.load(begins + workers)
    place, inside, value = _entries(own_places, own_values, at, end, base, limit, WIDTH, STEP)
    _fill(total, left_out, limit, TILE, PART)
    tl.debug_barrier()
    most = end - at
    for r in range(workers):
        now, now_inside, now_value, now_at, now_end = place, inside, value, at, end
        now_places, now_values = own_places, own_values
        following = tl.minimum(r + 1, workers - 1)
        bounds_of = bounds + following.to(tl.int64) * (tiles + 1) + tile
        at, end = tl.load(bounds_of), tl.load(bounds_of + 1)
        own_places = places + STEP * tl.load(begins + following)
        own_values = values + tl.load(begins + workers + following)
        place, inside, value = _entries(own_places, own_values, at, end, base, limit, WIDTH, STEP)
        _add(total, now, now_inside, now_value)
        for first in range(now_at + WIDTH, now_end, WIDTH):
            now, now_inside, now_value = _entries(now_places, now_values, first, now_end, base, limit, WIDTH, STEP)
            _add(total, now, now_inside, now_value)
        most = tl.maximum(most, end - at)
        tl.debug_barrier()
    if WORKERS > 0:
        if most <= WIDTH:
            worker = tl.arange(0, WORKERS)
            some = worker < workers
            bounds_of = bounds + worker.to(tl.int64) * (tiles + 1) + tile
            first = tl.load(bounds_of, mask=some, other=0)
            last = tl.load(bounds_of + 1, mask=some, other=0)
            j = first[:, None] + tl.arange(0, WIDTH)[None, :]
            begin = tl.load(begins + worker, mask=some, other=0)[:, None]
            where = tl.load(places + STEP * (begin + j), mask=j < last[:, None], other=_FAR) - base
            _divide_few(total, where, (where >= 0) & (where < limit), divisor)
        else:
            _divide_all(total, limit, divisor, PART)
    else:
        _divide_all(total, limit, divisor, PART)


@dataclass(frozen=True)
class Entries:
    """What all workers sent, on the device: places, which ascend for each worker, as int32 or int64, and float32
    values.

    `begins` says how many entries behind the first one each worker's places begin, and behind them the same of its
    values; `counts` how many there are of each, at most `most`.
    """

    places: Tensor
    values: Tensor
    begins: Tensor
    counts: Tensor
    most: int


def mean_of_sparse(places: Sequence[Tensor], values: Sequence[Tensor], n: int, left_out: float) -> Tensor:
    total = torch.empty(n, device=values[0].device)
    if left_out or not suits(total) or not _suit(places, values):
        return reference.mean_of_sparse(places, values, n, left_out)
    device, counts = total.device, tuple(p.numel() for p in places)
    begins = [(x.data_ptr() - xs[0].data_ptr()) // xs[0].itemsize for xs in (places, values) for x in xs]
    table = torch.tensor([*begins, *counts], pin_memory=device.type == "cuda").to(device, non_blocking=True)
    both = table[: 2 * len(counts)], table[2 * len(counts) :]
    write_mean(total, Entries(places[0], values[0], *both, max(counts)), left_out)
    return total


def suits(total: Tensor) -> bool:
    """Return whether `write_mean` can write into this tensor."""
    return 0 < total.numel() < _MOST and total.dtype == torch.float32 and total.is_contiguous()


def write_mean(total: Tensor, sent: Entries, left_out: float) -> None:
    """Write the mean of all workers' entries into `total`, with `left_out`, plus or minus zero, where nobody sent a
    value."""
    workers, n, device = len(sent.counts), total.numel(), total.device
    tile = _tile(sent.most, n)
    tiles = -(-n // tile)
    places, step = sent.places.view(torch.int32), sent.places.itemsize // 4  # the lower half of a place holds all of it
    bounds = torch.empty(workers * (tiles + 1), dtype=torch.int32, device=device)
    _search[(-(-(tiles + 1) // _SEARCHED), workers)](
        places, sent.begins, sent.counts, tiles, sent.most.bit_length(), bounds, tile, _SEARCHED, step,
        num_warps=_SEARCH_WARPS,
    )  # fmt: skip
    few = triton.next_power_of_2(workers) if workers <= _FEW else 0
    _mean[(tiles,)](
        places, sent.values, sent.begins, bounds, workers, float(workers), total, n, tiles, left_out, tile, _WIDTH,
        min(_PART, tile), few, step, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def _tile(most: int, n: int) -> int:
    """Return the largest tile of which a worker is expected to send less than can be read at once."""
    expected = max(most / n, 1e-9)
    least, largest = _TILES
    return min(largest, max(least, triton.next_power_of_2(int(0.7 * _WIDTH / expected) + 1) // 2))


def _suit(places: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    return all(
        p.dtype == torch.int64 and v.dtype == torch.float32 and p.is_contiguous() and v.is_contiguous()
        and p.numel() == v.numel() < 1 << 30 for p, v in zip(places, values, strict=True)
    )  # fmt: skip
