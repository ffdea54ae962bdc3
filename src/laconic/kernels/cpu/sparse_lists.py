"""Sparse messages of lists of tensors, compiled by Numba: selection, memory, packing and means in one call for all.

Bytes and bits are those of `sparse_messages`. The k-th largest magnitude is found by counting: the leading bits of all
magnitudes, then further bits of those that share them with it.
"""

from __future__ import annotations

import numpy as np

from laconic.kernels.cpu.lists import _fed, _finite, _halves
from laconic.kernels.cpu.loops import _compiled, _copy, _fill, _inlined, _longest
from laconic.kernels.draws import BITS, FIRST, SECOND, SHIFTS

_LARGEST = np.int32(0x7F800000)  # the bits of infinity; NaN counts as much
_TINY = np.int32(0x00800000)  # the bits of the smallest limit
_ABSOLUTE = np.int32(0x7FFFFFFF)
_LEADING, _MIDDLE = 20, 10  # the place of the bits that are counted first, and second


@_inlined
def _size(bits):  # type: ignore[no-untyped-def]
    """Return a magnitude's bits, whose order is that of the numbers, from those of a value."""
    return min(np.int32(bits & _ABSOLUTE), _LARGEST)


@_compiled
def _reached(counts, k):  # type: ignore[no-untyped-def]
    """Return the highest number from which on at least k were counted, and how many are above it."""
    above = 0
    for digit in range(counts.size - 1, -1, -1):
        if above + counts[digit] >= k:
            return digit, above
        above += counts[digit]
    return 0, above


@_compiled
def kth_size(bits, k, counts, near):  # type: ignore[no-untyped-def]
    """Return the bits of the k-th largest magnitude, and how many are larger. `near` has room for all values, `counts`
    for 2048 numbers."""
    _fill(counts, 0)
    for i in range(bits.size):
        counts[_size(bits[i]) >> _LEADING] += 1
    digit, above = _reached(counts, k)
    found, leading = 0, np.int32(digit)
    for i in range(bits.size):
        size = _size(bits[i])
        near[found] = size
        found += size >> _LEADING == leading
    least = leading << np.int32(_LEADING)
    for place in (_MIDDLE, 0):
        _fill(counts, 0)
        for i in range(found):
            counts[(near[i] >> place) & 1023] += 1
        digit, more = _reached(counts, k - above)
        above += more
        kept = 0
        for i in range(found):
            if (near[i] >> place) & 1023 == digit:
                near[kept] = near[i]
                kept += 1
        found, least = kept, least | np.int32(digit << place)
    return least, above


@_inlined
def _written(places, values, count, room, width, out, at):  # type: ignore[no-untyped-def]
    """Write so many places of so many bits without gaps, and their values behind room for more places; return where the
    room for as many values ends."""
    behind = at - (-room * width // 8)
    held, waiting = np.int64(0), 0
    for i in range(count):
        held |= places[i] << waiting
        waiting += width
        while waiting >= 8:
            out[at] = np.uint8(held & 255)
            held >>= 8
            waiting -= 8
            at += 1
    if waiting > 0:
        out[at] = np.uint8(held & 255)
    raw = values[:count].view(np.uint8)
    _copy(raw, out[behind:])
    return behind + 4 * room


@_compiled
def encode_largest(places, errors, lengths, chosen, widths, out):  # type: ignore[no-untyped-def]
    """Write the `chosen` largest magnitudes of each tensor, of equal ones the first, and keep the others in `error`."""
    counts, near = np.empty(2048, np.int64), np.empty(_longest(lengths) + 1, np.int32)
    found_places, found_values = np.empty(_longest(chosen), np.int64), np.empty(_longest(chosen), np.float32)
    at = 0
    for t in range(lengths.size):
        n, k = lengths[t], chosen[t]
        v = _fed(places, errors, t, n)
        bits = v.view(np.int32)
        least, equal = np.int32(0), n
        if k < n:
            least, above = kth_size(bits, k, counts, near)
            equal = k - above
        found = 0
        for i in range(n):
            size = _size(bits[i])
            if size >= least and (size > least or equal > 0):
                equal -= size == least
                found_places[found], found_values[found] = i, v[i]
                found += 1
        at = _written(found_places, found_values, found, k, widths[t], out, at)
        if errors.size:
            for j in range(found):
                v[found_places[j]] = 0
            if least == _LARGEST:
                for i in range(n):
                    v[i] = _finite(v[i])


@_inlined
def _drawn(i, low, high):  # type: ignore[no-untyped-def]
    """Return `draws.integers` of one place."""
    h = np.uint32(np.uint32(i) ^ low)
    h = np.uint32(np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(SHIFTS[0]))) * np.uint32(FIRST)) + high)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(SHIFTS[1]))) * np.uint32(SECOND))
    return np.int64(np.uint32(h ^ np.uint32(h >> np.uint32(SHIFTS[2]))) >> np.uint32(32 - BITS))


@_compiled
def encode_sampled(places, errors, lengths, samples, most, widths, keys, out):  # type: ignore[no-untyped-def]
    """Write what passes each tensor's sampled limit into a message that is zero, with its number before it, and keep
    the others in `error`."""
    longest = _longest(lengths) + 1
    counts, near = np.empty(2048, np.int64), np.empty(longest, np.int32)
    found_places, found_values, sample = np.empty(longest, np.int64), np.empty(longest, np.float32), near.copy()
    at = 0
    for t in range(lengths.size):
        n, looked, k = lengths[t], samples[t, 0], samples[t, 1]
        v = _fed(places, errors, t, n)
        bits = v.view(np.int32)
        if looked < n:
            low, high = _halves(keys[t])
            for i in range(looked):
                sample[i] = bits[(_drawn(i, low, high) * n) >> BITS]
            limit, _ = kth_size(sample[:looked], k, counts, near)
        else:
            limit, _ = kth_size(bits, k, counts, near)
        limit = max(limit, _TINY)
        found, nans = 0, 0
        for i in range(n):
            if _size(bits[i]) >= limit:
                found_places[found], found_values[found] = i, v[i]
                nans += v[i] != v[i]
                found += 1
        if found > most[t]:
            found = _first_or_largest(found_places, found_values, found, most[t], nans > 0, counts, near)
        held = np.int64(found)
        for j in range(4):
            out[at + j] = np.uint8((held >> (8 * j)) & 255)
        at = _written(found_places, found_values, found, most[t], widths[t], out, at + 4)
        if errors.size:
            for j in range(found):
                v[found_places[j]] = 0
            for i in range(n):
                v[i] = _finite(v[i])


@_compiled
def _first_or_largest(places, values, count, most, largest, counts, near):  # type: ignore[no-untyped-def]
    """Keep the first of what passed, or the largest where there is NaN; return how many are kept."""
    if not largest:
        return most
    bits = values[:count].view(np.int32)
    least, above = kth_size(bits, most, counts, near)
    equal, kept = most - above, 0
    for i in range(count):
        size = _size(bits[i])
        if size >= least and (size > least or equal > 0):
            equal -= size == least
            places[kept], values[kept] = places[i], values[i]
            kept += 1
    return kept


@_inlined
def _add_part(part, count, room, width, mean):  # type: ignore[no-untyped-def]
    """Add the values of a part to the places it names; it has room for so many."""
    mask, held, waiting, byte = (np.int64(1) << width) - 1, np.int64(0), 0, 0
    at, value = -(-room * width // 8), np.empty(1, np.float32)
    raw = value.view(np.uint8)
    for i in range(count):
        while waiting < width:
            held |= np.int64(part[byte]) << waiting
            waiting += 8
            byte += 1
        for j in range(4):
            raw[j] = part[at + 4 * i + j]
        mean[held & mask] += value[0]
        held >>= width
        waiting -= width


@_compiled
def average_places(total, rows, lengths, most, widths, counted, left_out):  # type: ignore[no-untyped-def]
    """Write the means of all tensors, one behind another."""
    begin, at, size = 0, 0, np.float32(len(rows))
    head = 4 if counted else 0
    for t in range(lengths.size):
        mean = total[begin : begin + lengths[t]]
        _fill(mean, left_out)
        end = at + head - (-most[t] * widths[t] // 8) + 4 * most[t]
        for r in range(len(rows)):
            count = most[t]
            if counted:
                number = np.int64(0)
                for j in range(4):
                    number |= np.int64(rows[r, at + j]) << (8 * j)
                count = min(number, count)
            _add_part(rows[r, at + head : end], count, most[t], widths[t], mean)
        for i in range(mean.size):
            mean[i] /= size
        begin, at = begin + lengths[t], end
