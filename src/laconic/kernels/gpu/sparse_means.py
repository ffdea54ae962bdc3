"""The mean of many workers' sparse messages, of a few places each, without a dense tensor for any of them.

A program is one warp and owns a run of tiles. It searches where each worker's places enter its run, and from there on
counts: of every tile it reads the next few places of all workers at once, those below the tile's end are its own, and
the rest is the next tile's, which is fetched while this one is summed. Sums are made in the output itself, worker after
worker with a barrier between them, while it is in the cache; every worker keeps its own, so that the means are written
without reading them again. 4 bytes an element, and 8 or 12 for each place that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference

_TILE, _WIDTH, _WARPS = 2048, 32, 1
_LONG = 128  # places read at once of a worker that sent more than a few of a tile
_PROGRAMS = 16384
_MOST = (1 << 31) - (1 << 20)  # the largest number of elements
_AT_ONCE = 16  # workers read at once: more would not fit in registers
_REGISTERS = 64  # with more, less than the 32 programs run at once that a multiprocessor takes, and latency bounds them
_FAR = tl.constexpr((1 << 31) - 1)  # a place behind every tile


@triton.jit
def _entered(places, begins, counts, first, workers, target, steps, WORKERS: tl.constexpr, WIDTH: tl.constexpr,
             STEP: tl.constexpr):  # fmt: skip
    """Return how many of each worker's places are before this one. Each step looks at WIDTH places at equal distances,
    of which those before it are counted."""
    worker = first + tl.arange(0, WORKERS)
    j = tl.arange(0, WIDTH)[None, :]
    low = tl.zeros([WORKERS], tl.int32)
    high = tl.load(counts + worker, mask=worker < workers, other=0).to(tl.int32)
    places += STEP * tl.load(begins + worker, mask=worker < workers, other=0)
    for _ in range(steps):
        apart = (high - low) // (WIDTH + 1) + 1
        at = low[:, None] + (j + 1) * apart[:, None] - 1
        inside = at < high[:, None]
        place = tl.load(places[:, None] + STEP * at.to(tl.int64), mask=inside, other=_FAR)
        before = tl.sum((place < target).to(tl.int32), axis=1)
        low += before * apart
        high = tl.minimum(high, low + apart - 1)
    return low


@triton.jit
def _next(places, values, begins, counts, first, workers, at, WORKERS: tl.constexpr, WIDTH: tl.constexpr,
          STEP: tl.constexpr):  # fmt: skip
    """Return the next few places of all workers, and the bits of the values there; where they begin is in the cache."""
    worker = first + tl.arange(0, WORKERS)
    j = tl.arange(0, WIDTH)[None, :]
    some = worker < workers
    inside = j < (tl.load(counts + worker, mask=some, other=0).to(tl.int32) - at)[:, None]
    begin = tl.load(begins + worker, mask=some, other=0) + at
    place = tl.load(places + STEP * (begin[:, None] + j), mask=inside, other=_FAR)
    begin = tl.load(begins + workers + worker, mask=some, other=0) + at
    return place, tl.load(values + begin[:, None] + j, mask=inside, other=0)


@triton.jit
def _add(total, place, bits, left_out, limit, FIRST: tl.constexpr):
    """Add one worker's values, and return the sums."""
    inside = (place >= 0) & (place < limit)  # whatever a message holds
    if FIRST:
        before = left_out
    else:
        before = tl.load(total + place, mask=inside, other=0.0)
    sums = before + bits.to(tl.float32, bitcast=True)
    tl.store(total + place, sums, mask=inside)
    return sums


@triton.jit
def _add_few(total, place, bits, left_out, limit, FIRST: tl.constexpr, WORKERS: tl.constexpr):
    """Add worker after worker, and return each one's sums. A row lies across a warp and all rows in registers:
    extracting one costs nothing."""
    row = tl.arange(0, WORKERS)[:, None]
    sums = bits.to(tl.float32, bitcast=True)
    for r in tl.static_range(WORKERS):
        one = tl.sum(tl.where(row == r, place, 0), axis=0)
        added = _add(total, one, tl.sum(tl.where(row == r, bits, 0), axis=0), left_out, limit, FIRST and r == 0)
        sums = tl.where(row == r, added[None, :], sums)
        tl.debug_barrier()
    return sums


@triton.jit
def _add_many(places, values, begins, counts, first, workers, begin, total, base, limit, TILE: tl.constexpr,
              WORKERS: tl.constexpr, LONG: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Add a tile of which some worker sent many places, and return where each worker's places continue behind it."""
    worker = tl.arange(0, WORKERS)
    j = tl.arange(0, LONG)
    for r in range(WORKERS):
        at = tl.sum(tl.where(worker == r, begin, 0), axis=0)
        some = first + r < workers
        own_places = places + STEP * tl.load(begins + first + r, mask=some, other=0)
        own_values = values + tl.load(begins + workers + first + r, mask=some, other=0)
        length = tl.load(counts + first + r, mask=some, other=0).to(tl.int32)
        count = tl.full([], LONG, tl.int32)
        while count == LONG:
            inside = j < length - at
            place = tl.load(own_places + STEP * (at + j).to(tl.int64), mask=inside, other=_FAR) - base.to(tl.int32)
            _add(total, place, tl.load(own_values + at + j, mask=inside, other=0), 0.0, limit, False)
            count = tl.sum((place < TILE).to(tl.int32), axis=0)
            at += count
        begin = tl.where(worker == r, at, begin)
        tl.debug_barrier()
    return begin


@triton.jit
def _divided(sums, some, workers):
    return tl.div_rn(tl.where(some, sums, 1.0), tl.zeros_like(sums) + workers)


@triton.jit
def _divide_few(total, place, sums, limit, workers, WORKERS: tl.constexpr):
    """Write the means at the places that were sent, worker after worker: of a place that several sent, the last one has
    the sum of all."""
    row = tl.arange(0, WORKERS)[:, None]
    inside = (place >= 0) & (place < limit)
    means = _divided(sums, inside, workers).to(tl.int32, bitcast=True)
    for r in tl.static_range(WORKERS):
        one = tl.sum(tl.where(row == r, place, 0), axis=0)
        mean = tl.sum(tl.where(row == r, means, 0), axis=0).to(tl.float32, bitcast=True)
        tl.store(total + one, mean, mask=(one >= 0) & (one < limit))
        tl.debug_barrier()


@triton.jit
def _divide_all(total, limit, workers, PART: tl.constexpr):
    """Divide all sums in parts, so that few registers are held and many programs run at once."""
    for first in range(0, limit, PART):
        i = first + tl.arange(0, PART)
        sums = tl.load(total + i, mask=i < limit, other=0.0)
        some = (sums.to(tl.int32, bitcast=True) & 0x7FFFFFFF) != 0  # a zero stays what it is, and is slow to divide
        tl.store(total + i, _divided(sums, some, workers), mask=some)


@triton.jit
def _fill(total, left_out, limit, TILE: tl.constexpr, PART: tl.constexpr):
    if limit == TILE:
        tl.store(total + tl.arange(0, TILE), tl.full([TILE], left_out, tl.float32))
    else:
        for first in range(0, limit, PART):
            i = first + tl.arange(0, PART)
            tl.store(total + i, tl.full([PART], left_out, tl.float32), mask=i < limit)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["workers", "divisor", "steps", "n", "tiles", "each"])
def _mean(places, values, begins, counts, workers, divisor, steps, total, n, tiles, each, left_out,
          TILE: tl.constexpr, WIDTH: tl.constexpr, WORKERS: tl.constexpr, LONG: tl.constexpr,
          STEP: tl.constexpr):  # fmt: skip
    """Compute the mean of few enough workers to be read at once."""
    tile = tl.program_id(0).to(tl.int64) * each
    last = tl.minimum(tile + each, tiles)
    begin = _entered(places, begins, counts, 0, workers, tile * TILE, steps, WORKERS, WIDTH, STEP)
    place, bits = _next(places, values, begins, counts, 0, workers, begin, WORKERS, WIDTH, STEP)
    while tile < last:
        base = tile * TILE
        limit = tl.minimum(n - base, TILE).to(tl.int32)
        _fill(total + base, left_out, limit, TILE, LONG)
        here, sent = place - base.to(tl.int32), bits
        count = tl.sum((here < TILE).to(tl.int32), axis=1)
        if tl.max(count, axis=0) < WIDTH:
            begin += count
            place, bits = _next(places, values, begins, counts, 0, workers, begin, WORKERS, WIDTH, STEP)
            sums = _add_few(total + base, here, sent, left_out, limit, True, WORKERS)
            _divide_few(total + base, here, sums, limit, divisor, WORKERS)
        else:
            begin = _add_many(places, values, begins, counts, 0, workers, begin, total + base, base, limit, TILE,
                              WORKERS, LONG, STEP)  # fmt: skip
            place, bits = _next(places, values, begins, counts, 0, workers, begin, WORKERS, WIDTH, STEP)
            _divide_all(total + base, limit, divisor, LONG)
        tile += 1


@triton.jit(do_not_specialize=["workers", "padded", "divisor", "steps", "n", "tiles", "each"])
def _mean_of_many(places, values, begins, counts, workers, divisor, steps, total, n, tiles, each, left_out, padded,
                  cursors, TILE: tl.constexpr, WIDTH: tl.constexpr, WORKERS: tl.constexpr, LONG: tl.constexpr,
                  STEP: tl.constexpr):  # fmt: skip
    """Compute the mean of some workers after others; where their places continue is kept in memory."""
    tile = tl.program_id(0).to(tl.int64) * each
    last = tl.minimum(tile + each, tiles)
    cursors += tl.program_id(0).to(tl.int64) * padded + tl.arange(0, WORKERS)
    for first in range(0, padded, WORKERS):
        entered = _entered(places, begins, counts, first, workers, tile * TILE, steps, WORKERS, WIDTH, STEP)
        tl.store(cursors + first, entered)
    while tile < last:
        base = tile * TILE
        limit = tl.minimum(n - base, TILE).to(tl.int32)
        _fill(total + base, left_out, limit, TILE, LONG)
        for first in range(0, padded, WORKERS):
            begin = tl.load(cursors + first)
            place, bits = _next(places, values, begins, counts, first, workers, begin, WORKERS, WIDTH, STEP)
            here = place - base.to(tl.int32)
            count = tl.sum((here < TILE).to(tl.int32), axis=1)
            if tl.max(count, axis=0) < WIDTH:
                _add_few(total + base, here, bits, left_out, limit, False, WORKERS)
                begin += count
            else:
                begin = _add_many(places, values, begins, counts, first, workers, begin, total + base, base, limit,
                                  TILE, WORKERS, LONG, STEP)  # fmt: skip
            tl.store(cursors + first, begin)
        _divide_all(total + base, limit, divisor, LONG)
        tile += 1


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
    workers, n = len(sent.counts), total.numel()
    once = min(triton.next_power_of_2(workers), _AT_ONCE)
    padded = -(-workers // once) * once
    tiles = -(-n // _TILE)
    each = -(-tiles // _PROGRAMS)
    programs = -(-tiles // each)
    given = sent.places.view(torch.int32), sent.values.view(torch.int32), sent.begins, sent.counts
    arguments = (*given, workers, float(workers), _steps(sent.most), total, n, tiles, each, left_out)
    how = {"num_warps": _WARPS, "enable_fp_fusion": False, "maxnreg": _REGISTERS if once <= 8 else 2 * _REGISTERS}
    step = sent.places.itemsize // 4  # the lower half of a place holds all of it
    if padded == once:
        _mean[(programs,)](*arguments, _TILE, _WIDTH, once, _LONG, step, **how)
    else:
        cursors = torch.empty(programs * padded, dtype=torch.int32, device=total.device)
        _mean_of_many[(programs,)](*arguments, padded, cursors, _TILE, _WIDTH, once, _LONG, step, **how)


def _steps(count: int) -> int:
    """Return how many steps `_entered` takes among so many places."""
    return 1 + _steps(count // (_WIDTH + 1)) if count else 0


def _suit(places: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    return all(
        p.dtype == torch.int64 and v.dtype == torch.float32 and p.is_contiguous() and v.is_contiguous()
        and p.numel() == v.numel() < 1 << 30 for p, v in zip(places, values, strict=True)
    )  # fmt: skip
