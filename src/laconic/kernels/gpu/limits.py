"""The k-th largest magnitude of a sample, or of values whose number only the device knows; the result stays on the
device.

Bit patterns of magnitudes, read as integers, have the order of magnitudes. A small sample stays in one program's
registers, which finds the number bit by bit. Of more, three passes count digits, from the first on, each among those
that share the digits found so far; they all lie in the cache. The last program to have counted the last digit writes
the result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.lists import halves_of
from laconic.kernels.gpu.selection import suit
from laconic.kernels.gpu.triton_helpers import draw

FEW = 16384
"""The number of values that one program holds."""
_TILE = 1024
_LONG, _LARGE = 4096, 1 << 19  # tiles of this length where there are more values than that
_LEAST = 0x00800000  # the bits of the least normal number
INFINITE = tl.constexpr(0x7F800000)
SECOND, THIRD = tl.constexpr(23), tl.constexpr(13)
"""The bits below the first digit, which is the exponent, and below the second."""
DIGITS = 1 << 8, 1 << 10, 1 << 13
AT_2, AT_3 = tl.constexpr(DIGITS[0]), tl.constexpr(DIGITS[0] + DIGITS[1])
STATE = tl.constexpr(sum(DIGITS))
"""The offset behind all counts of: the first digit, the first two, the rank among those that share them, and how many
programs are done."""


@triton.jit
def size(v):
    """Return a magnitude as a whole number; NaN becomes the largest possible."""
    return tl.minimum(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, INFINITE)


@triton.jit
def _sampled(x, error, n, i, inside, low, high, DRAWN: tl.constexpr, FED: tl.constexpr):
    """Return the values with these numbers in a sample of x + error."""
    at = i.to(tl.int64)
    if DRAWN:
        at = (draw(i, low, high).to(tl.int64) * n) >> 24
    v = tl.load(x + at, mask=inside, other=0.0)
    if FED:
        v += tl.load(error + at, mask=inside, other=0.0)
    return v


@triton.jit(do_not_specialize=["n", "count", "k", "low", "high", "least"])
def _bit_by_bit(x, error, n, count, k, low, high, least, limit, ROOM: tl.constexpr, BITS: tl.constexpr,
                DRAWN: tl.constexpr, FED: tl.constexpr):  # fmt: skip
    """Find the largest number of so many leading bits, then zeros, that at least k of a small sample reach."""
    i = tl.arange(0, ROOM)
    inside = i < count
    bits = tl.where(inside, size(_sampled(x, error, n, i, inside, low, high, DRAWN, FED)), -1)
    found = tl.full([], 0, tl.int32)
    for b in range(BITS):
        higher = found | (1 << (30 - b))
        enough = tl.sum((bits >= higher).to(tl.int32), 0) >= k
        found = tl.where(enough, higher, found)
    tl.store(limit, tl.maximum(found, least).to(tl.float32, bitcast=True))


@triton.jit
def _next(counts, k, DIGITS: tl.constexpr):
    """Return the digit of the k-th largest, and its rank among those with this digit."""
    digit = tl.arange(0, DIGITS)
    count = tl.load(counts + digit, cache_modifier=".cg")
    reach = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # have this digit or a higher one
    found = tl.maximum(tl.sum((reach >= k).to(tl.int32), 0) - 1, 0)
    return found, k - tl.sum(tl.where(digit > found, count, 0), 0)


@triton.jit
def _held(length, room, KNOWN: tl.constexpr):
    """Return how many values there are: as many as there is room for, or the number on the device, which may be
    larger."""
    if KNOWN:
        return room
    else:
        return tl.minimum(tl.load(length), room).to(tl.int32)


@triton.jit
def _add_digits(counts, digit, some, TILE: tl.constexpr, DIGITS: tl.constexpr):
    """Count the digits of some values of a tile, and add what the tile has of each in one addition."""
    at = tl.arange(0, DIGITS)
    others = TILE - tl.sum(some.to(tl.int32), 0)
    count = tl.histogram(tl.where(some, digit, 0), DIGITS) - tl.where(at == 0, others, 0)
    tl.atomic_add(counts + at, count, mask=count > 0, sem="relaxed")


@triton.jit(do_not_specialize=["n", "low", "high", "room"])
def _first(x, error, n, low, high, values, length, room, counts, TILE: tl.constexpr, KNOWN: tl.constexpr,
           SAMPLED: tl.constexpr, FED: tl.constexpr):  # fmt: skip
    """Count exponents. SAMPLED: the values are drawn first, and kept."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    held = _held(length, room, KNOWN)
    inside = i < held
    if SAMPLED:
        v = _sampled(x, error, n, i, inside, low, high, True, FED)
        tl.store(values + i, v, mask=inside)
    else:
        v = tl.load(values + i, mask=inside, other=0.0)
    if tl.program_id(0) * TILE < held:
        _add_digits(counts, size(v) >> SECOND, inside, TILE, AT_2)


@triton.jit(do_not_specialize=["room", "k"])
def _second(values, length, room, k, counts, TILE: tl.constexpr, KNOWN: tl.constexpr):
    """Count the next ten bits, among values with the exponent that was found."""
    first = tl.program_id(0) * TILE
    held = _held(length, room, KNOWN)
    if first < held:
        found, which = _next(counts, k, AT_2)
        if first == 0:
            tl.store(counts + STATE, found)
            tl.store(counts + STATE + 1, which)
        i = first + tl.arange(0, TILE)
        bits = size(tl.load(values + i, mask=i < held, other=0.0))
        shared = (i < held) & ((bits >> SECOND) == found)
        _add_digits(counts + AT_2, (bits >> THIRD) & (AT_3 - AT_2 - 1), shared, TILE, AT_3 - AT_2)


@triton.jit(do_not_specialize=["room", "k", "least"])
def _third(values, length, room, k, counts, least, limit, TILE: tl.constexpr, KNOWN: tl.constexpr):
    """Count the last bits, among values that share all before them; the last program to finish finds the limit.

    Where there are no values, the limit is `least`.
    """
    first = tl.program_id(0) * TILE
    held = _held(length, room, KNOWN)
    exponent = tl.load(counts + STATE)
    found, which = _next(counts + AT_2, tl.load(counts + STATE + 1), AT_3 - AT_2)
    found |= exponent << (SECOND - THIRD)
    if first < held:
        i = first + tl.arange(0, TILE)
        bits = size(tl.load(values + i, mask=i < held, other=0.0))
        shared = (i < held) & ((bits >> THIRD) == found)
        tl.atomic_add(counts + AT_3 + (bits & (STATE - AT_3 - 1)), 1, mask=shared, sem="relaxed")
    tl.debug_barrier()
    done = tl.atomic_add(counts + STATE + 2, 1)
    if done == tl.num_programs(0) - 1:
        last, _ = _next(counts + AT_3, which, STATE - AT_3)
        tl.store(limit, tl.maximum((found << THIRD) | last, least).to(tl.float32, bitcast=True))


def _digit_by_digit(
    x: Tensor, error: Tensor | None, key: int, values: Tensor, length: Tensor | None, k: int, least: int, sampled: bool
) -> Tensor:
    """Find the limit in three launches; the length is on the device where it is given."""
    counts = torch.zeros(sum(DIGITS) + 4, dtype=torch.int32, device=values.device)
    limit, room = counts[-1:].view(torch.float32), values.numel()
    known, held = length is None, values if length is None else length
    tile = _TILE if room <= _LARGE else _LONG
    grid = (-(-room // tile),)
    _first[grid](
        x, x if error is None else error, x.numel(), *halves_of(key), values, held, room, counts, tile, known,
        sampled, error is not None, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    _second[grid](values, held, room, k, counts, tile, known, num_warps=4)
    _third[grid](values, held, room, k, counts, least, limit, tile, known, num_warps=4)
    return limit.view(())


def limit_of(values: Tensor, length: Tensor, k: int) -> Tensor:
    """Return the k-th largest magnitude of the first `length` values; the length is on the device."""
    return _digit_by_digit(values, None, 0, values, length, k, 0, False)


def sampled_limit(x: Tensor, error: Tensor | None, count: int, k: int, key: int) -> Tensor:
    if not suit(x, *([] if error is None else [error])) or count >= 1 << 31:
        return reference.sampled_limit(x, error, count, k, key)
    count, drawn = min(count, x.numel()), count < x.numel()
    if count <= FEW:
        return roughly(x, error, count, k, key, 31)
    values = torch.empty(count, device=x.device) if drawn else x if error is None else x + error
    return _digit_by_digit(x, error, key, values, None, k, _LEAST, drawn)


def roughly(x: Tensor, error: Tensor | None, count: int, k: int, key: int, bits: int) -> Tensor:
    """Return the k-th largest magnitude of a small sample, rounded down to so many bits of 31."""
    limit = torch.empty((), device=x.device)
    room = max(triton.next_power_of_2(count), 1024)
    _bit_by_bit[(1,)](
        x, x if error is None else error, x.numel(), count, k, *halves_of(key), _LEAST, limit, room, bits,
        count < x.numel(), error is not None, num_warps=max(room // 1024, 4), enable_fp_fusion=False,
    )  # fmt: skip
    return limit
