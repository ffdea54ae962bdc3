"""The hot loops for CPUs, compiled by Numba: the same results as `reference`, to the bit, several times faster.

Loops work on tiles that stay in the cache, and every tile's work is split into passes that the compiler turns into
vector instructions. Kernels take NumPy views of contiguous tensors, release Python's lock, and are compiled once per
host (the result is kept on disk). `in_parts` divides long inputs among as many threads as torch uses.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
import torch

from laconic.kernels.draws import BITS, FIRST, SECOND, SHIFTS
from laconic.kernels.sums import BLOCK

_PARALLEL = 1 << 20  # elements from which on it pays to wake other threads
_compiled = numba.njit(nogil=True, cache=True)
_inlined = numba.njit(nogil=True, inline="always")
_FIRST, _SECOND = np.uint32(FIRST), np.uint32(SECOND)
_S0, _S1, _S2 = (np.uint32(s) for s in SHIFTS)
_REST = np.uint32(32 - BITS)
_UNIT = np.float32(2.0**-BITS)
_HALF = BLOCK // 2


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "laconic-kernels")


def in_parts(n: int, step: int) -> list[tuple[int, int]]:
    """Return where each thread begins and ends, in units of `step` elements."""
    parts = torch.get_num_threads() if n >= _PARALLEL else 1
    units = -(-n // step)
    share = max(1, -(-units // parts))
    return [(first, min(first + share, units)) for first in range(0, units, share)]


def run(kernel: Callable[..., Any], n: int, step: int, *arguments: Any) -> list[Any]:
    """Call a kernel for parts of `n` elements; its last arguments are the first and the last unit of a part.

    Tensors become arrays, and single numbers the types that the kernels' arithmetic expects.
    """
    given = [_argument(a) for a in arguments]
    return _map(lambda span: kernel(*given, *span), in_parts(n, step))


def _map(act: Callable[[Any], Any], parts: list[Any]) -> list[Any]:
    return list(map(act, parts) if len(parts) <= 1 else _threads(len(parts)).map(act, parts))


def _argument(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return a.numpy() if a.ndim else np.float32(a.item())
    return a


@_inlined
def _fill(part, value):  # type: ignore[no-untyped-def]
    """Write a value everywhere: a plain loop, since Numba takes seconds to compile an assignment to a slice."""
    for i in range(part.size):
        part[i] = value


@_inlined
def _copy(source, out):  # type: ignore[no-untyped-def]
    for i in range(source.size):
        out[i] = source[i]


@_inlined
def _longest(lengths):  # type: ignore[no-untyped-def]
    most = np.int64(0)
    for i in range(lengths.size):
        most = max(most, lengths[i])
    return most


@_inlined
def _draw(i, low, high):  # type: ignore[no-untyped-def]
    """Return `draws.uniform` of one place. Numba widens 32-bit results, hence the many casts."""
    h = np.uint32(np.uint32(i) ^ low)
    h = np.uint32(np.uint32(np.uint32(h ^ np.uint32(h >> _S0)) * _FIRST) + high)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S1)) * _SECOND)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S2)) >> _REST)
    return np.float32(np.int32(h)) * _UNIT


@_compiled
def uniform(low, high, start, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = _draw(start + i, low, high)


@_inlined
def _summed(block):  # type: ignore[no-untyped-def]
    """Return the sum of 1024 values, halved once already, in the order of `sums`; they are overwritten."""
    for width in (256, 128):
        for j in range(width):
            block[j] += block[j + width]
    for j in range(32):
        block[j] = (block[4 * j] + block[4 * j + 2]) + (block[4 * j + 1] + block[4 * j + 3])
    for width in (16, 8, 4, 2, 1):
        for j in range(width):
            block[j] += block[j + width]
    return block[0]


@_compiled
def block_sums(x, power, sums, first, last):  # type: ignore[no-untyped-def]
    """Compute the sum of |x| or of x² over each block of 1024 from `first` to `last`."""
    block = np.empty(BLOCK, np.float32)
    for b in range(first, last):
        begin, count = b * BLOCK, min(BLOCK, x.size - b * BLOCK)
        if power == 1:
            for j in range(count):
                block[j] = abs(x[begin + j])
        else:
            for j in range(count):
                block[j] = x[begin + j] * x[begin + j]
        _fill(block[count:], np.float32(0))
        for j in range(_HALF):
            block[j] += block[j + _HALF]
        sums[b] = _summed(block)


@_compiled
def add_and_sum(x, error, sums, first, last):  # type: ignore[no-untyped-def]
    """Add x to error, and compute the sum of |error| over each block."""
    block = np.empty(BLOCK, np.float32)
    for b in range(first, last):
        begin, count = b * BLOCK, min(BLOCK, x.size - b * BLOCK)
        if count == BLOCK:
            for j in range(_HALF):
                v, w = error[begin + j] + x[begin + j], error[begin + _HALF + j] + x[begin + _HALF + j]
                error[begin + j], error[begin + _HALF + j] = v, w
                block[j] = abs(v) + abs(w)
        else:
            for j in range(count):
                v = error[begin + j] + x[begin + j]
                error[begin + j] = v
                block[j] = abs(v)
            _fill(block[count:], np.float32(0))
            for j in range(_HALF):
                block[j] += block[j + _HALF]
        sums[b] = _summed(block)


@_compiled
def pack_signs(x, out, first, last):  # type: ignore[no-untyped-def]
    """Pack a bit per value, 1 where it is not negative, the first in the lowest place, for bytes `first` to `last`."""
    for b in range(first, last):
        byte = np.uint8(0)
        for j in range(min(8, x.size - 8 * b)):
            byte |= np.uint8(x[8 * b + j] >= 0) << np.uint8(j)
        out[b] = byte


@_compiled
def pack_and_keep(error, scale, out, first, last):  # type: ignore[no-untyped-def]
    """Pack signs, and leave in `error` the rest after subtracting a sign times the scale."""
    for b in range(first, last):
        byte = np.uint8(0)
        for j in range(min(8, error.size - 8 * b)):
            v = error[8 * b + j]
            positive = v >= 0
            byte |= np.uint8(positive) << np.uint8(j)
            error[8 * b + j] = v - scale if positive else v + scale
        out[b] = byte


@_compiled
def add_signs(bits, scale, total, first, last):  # type: ignore[no-untyped-def]
    """Add ± scale to the total, by the bits of bytes `first` to `last`."""
    for b in range(first, last):
        byte = bits[b]
        for j in range(min(8, total.size - 8 * b)):
            total[8 * b + j] += scale if (byte >> np.uint8(j)) & np.uint8(1) else -scale


@_compiled
def bucket_maxima(magnitudes, bucket, out, first, last):  # type: ignore[no-untyped-def]
    """Find the largest |x| of each bucket, from the bits of |x|, whose order is that of the numbers; NaN is above
    all."""
    for k in range(first, last):
        most = np.int32(0)
        for i in range(k * bucket, min((k + 1) * bucket, magnitudes.size)):
            most = max(most, magnitudes[i] & np.int32(0x7FFFFFFF))
        out[k] = most


@_compiled
def levels(x, scales, bucket, steps, low, high, out, first, last):  # type: ignore[no-untyped-def]
    """Compute `steps` plus the signed level: |x|·steps/scale, rounded up with the probability of its fraction."""
    for k in range(first, last):
        begin, end = k * bucket, min((k + 1) * bucket, x.size)
        _levels(x[begin:end], scales[k], steps, low, high, begin, out[begin:end])


@_compiled
def levels_in_nibbles(x, scales, bucket, steps, low, high, out, first, last):  # type: ignore[no-untyped-def]
    """Compute levels where a code takes four bits and a bucket is even: two in a byte, the first in its lower half."""
    tile = np.zeros(bucket, np.uint8)
    for k in range(first, last):
        begin, end = k * bucket, min((k + 1) * bucket, x.size)
        _levels(x[begin:end], scales[k], steps, low, high, begin, tile[: end - begin])
        if end - begin < bucket:
            _fill(tile[end - begin :], np.uint8(0))
        at = begin // 2
        for j in range((end - begin + 1) // 2):
            out[at + j] = tile[2 * j] | (tile[2 * j + 1] << np.uint8(4))


@_inlined
def _levels(x, scale, steps, low, high, start, out):  # type: ignore[no-untyped-def]
    factor = np.float32(steps) / scale if scale > 0 else np.float32(0)
    most = np.float32(steps)
    for i in range(x.size):
        draw = _draw(start + i, low, high)
        a = abs(x[i]) * factor
        a = a if a < most else most  # also NaN
        whole = np.int32(a)
        level = whole + np.int32(draw < a - np.float32(whole))
        out[i] = np.uint8(np.int32(steps) + (-level if x[i] < 0 else level))


@_compiled
def add_levels(codes, nibbles, scales, bucket, steps, total, first, last):  # type: ignore[no-untyped-def]
    """Add the level times 1/`steps` of its bucket's scale to the total, from codes of one byte or (where there are
    none) nibbles."""
    levels = np.arange(256).astype(np.float32) - np.float32(steps)
    for k in range(first, last):
        unit = scales[k] * np.float32(1 / steps)
        begin, end = k * bucket, min((k + 1) * bucket, total.size)
        if codes.size:
            for i in range(begin, end):
                total[i] += levels[codes[i]] * unit
        else:
            whole = (end - begin) // 2
            at = begin // 2
            for j in range(whole):
                byte = nibbles[at + j]
                total[begin + 2 * j] += levels[byte & np.uint8(15)] * unit
                total[begin + 2 * j + 1] += levels[byte >> np.uint8(4)] * unit
            if begin + 2 * whole < end:
                total[end - 1] += levels[nibbles[at + whole] & np.uint8(15)] * unit


@_compiled
def select(x, threshold, indices, values, start, stop):  # type: ignore[no-untyped-def]
    """Write the places and values with |x| >= threshold from `start` to `stop`."""
    found = 0
    for i in range(start, stop):
        if abs(x[i]) >= threshold:
            indices[found] = i
            values[found] = x[i]
            found += 1


@_compiled
def count(x, threshold, start, stop):  # type: ignore[no-untyped-def]
    found = 0
    for i in range(start, stop):
        found += abs(x[i]) >= threshold
    return found


def selected(x: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places and values with |x| >= threshold; they are counted first, so that no unused memory is
    allocated."""
    array, least = x.numpy(), np.float32(threshold)
    spans = in_parts(x.numel(), 1)
    ends = np.cumsum(_map(lambda span: count(array, least, *span), spans))
    places, values = torch.empty(int(ends[-1]), dtype=torch.int64), torch.empty(int(ends[-1]))
    homes = [slice(end - n, end) for end, n in zip(ends, np.diff(ends, prepend=0), strict=True)]
    into = [(places.numpy()[home], values.numpy()[home], *span) for home, span in zip(homes, spans, strict=True)]
    _map(lambda part: select(array, least, *part), into)
    return places, values


@_compiled
def pack_numbers(codes, bits, packed, first, last):  # type: ignore[no-untyped-def]
    """Pack numbers of so many bits; eight numbers take `bits` bytes."""
    for group in range(first, last):
        held, waiting, byte = np.int64(0), 0, group * bits
        for i in range(8 * group, min(8 * group + 8, codes.size)):
            held |= codes[i] << waiting
            waiting += bits
            while waiting >= 8:
                packed[byte] = held & 0xFF
                held >>= 8
                waiting -= 8
                byte += 1
        if waiting > 0:
            packed[byte] = held & 0xFF


@_compiled
def unpack_numbers(packed, bits, codes, first, last):  # type: ignore[no-untyped-def]
    mask = (np.int64(1) << bits) - 1
    for group in range(first, last):
        held, waiting, byte = np.int64(0), 0, group * bits
        for i in range(8 * group, min(8 * group + 8, codes.size)):
            while waiting < bits:
                held |= np.int64(packed[byte]) << waiting
                waiting += 8
                byte += 1
            codes[i] = held & mask
            held >>= bits
            waiting -= bits
