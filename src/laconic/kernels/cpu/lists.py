"""Messages of lists of tensors, compiled by Numba: encoded, remembered and averaged in one call for all of them.

Bytes and bits are those of `messages`. Tensors may lie anywhere: kernels take their addresses, as `TensorList` keeps
them, and their lengths.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic as _intrinsic

from laconic.kernels.cpu.loops import _HALF, _compiled, _copy, _fill, _inlined, _levels, _longest, _summed
from laconic.kernels.draws import STIRRING
from laconic.kernels.sums import BLOCK

intrinsic: Any = _intrinsic  # what it decorates is called with one argument less
carray: Any = numba.carray  # type: ignore[attr-defined]
_MOST = np.finfo(np.float32).max
_NAN = np.uint32(0x7FC00000)
_SHIFTS = tuple(np.uint64(shift) for shift, _ in STIRRING)
_FACTORS = tuple(np.uint64(factor) for _, factor in STIRRING)


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """Return an address as a pointer to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


def _bitcast(of: Any, to: Any) -> Any:
    """Return a function for one type's bits as another."""

    def cast(typing: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return to(of), generate

    return intrinsic(cast)


_bits, _number = _bitcast(types.float32, types.int32), _bitcast(types.int32, types.float32)


@_inlined
def _write_scale(scale, out, at):  # type: ignore[no-untyped-def]
    """Write a float32 as four bytes, with one NaN for all."""
    bits = np.uint32(_bits(scale)) if scale == scale else _NAN
    for k in range(4):
        out[at + k] = np.uint8((bits >> np.uint32(8 * k)) & np.uint32(255))


@_inlined
def _read_scale(row, at):  # type: ignore[no-untyped-def]
    bits = np.uint32(0)
    for k in range(4):
        bits |= np.uint32(row[at + k]) << np.uint32(8 * k)
    return _number(np.int32(bits))


@_inlined
def _finite(value):  # type: ignore[no-untyped-def]
    return value if abs(value) <= _MOST else np.float32(0)


@_compiled
def _fed(places, errors, t, n):  # type: ignore[no-untyped-def]
    """Return tensor t, of n values; with errors, its own error after the tensor was added to it."""
    v = carray(_pointer(places[t]), n)
    if errors.size:
        x, v = v, carray(_pointer(errors[t]), n)
        for i in range(n):
            v[i] += x[i]
    return v


@_compiled
def _total(x, power, block, partial):  # type: ignore[no-untyped-def]
    """Return the sum of |x| or of x² in the order of `sums`; `partial` has room for a number a block."""
    count = max(1, -(-x.size // BLOCK))
    for b in range(count):
        part = x[b * BLOCK : min((b + 1) * BLOCK, x.size)]
        if power == 1:
            for j in range(part.size):
                block[j] = abs(part[j])
        else:
            for j in range(part.size):
                block[j] = part[j] * part[j]
        _fill(block[part.size :], np.float32(0))
        for j in range(_HALF):
            block[j] += block[j + _HALF]
        partial[b] = _summed(block)
    while count > 1:
        blocks = -(-count // BLOCK)
        for b in range(blocks):
            part = partial[b * BLOCK : min((b + 1) * BLOCK, count)]
            _copy(part, block)
            _fill(block[part.size :], np.float32(0))
            for j in range(_HALF):
                block[j] += block[j + _HALF]
            partial[b] = _summed(block)
        count = blocks
    return partial[0]


@_inlined
def _room(lengths):  # type: ignore[no-untyped-def]
    """Return scratch memory for `_total` of the longest of these tensors."""
    return np.empty(BLOCK, np.float32), np.empty(1 + _longest(lengths) // BLOCK, np.float32)


@_compiled
def encode_signs(places, errors, lengths, out):  # type: ignore[no-untyped-def]
    """Write each tensor's signs of v = x + error and the mean of |v|, and keep the rest in `error`."""
    block, partial = _room(lengths)
    at = 0
    for t in range(lengths.size):
        n = lengths[t]
        x, v = carray(_pointer(places[t]), n), carray(_pointer(errors[t]), n)
        for i in range(n):
            v[i] += x[i]
        scale = _total(v, 1, block, partial) / np.float32(max(1, n))
        whole, bits = n // 8, out[at : at + -(-n // 8)]
        for b in range(whole):
            byte = np.uint8(0)
            for j in range(8):
                byte |= np.uint8(v[8 * b + j] >= 0) << np.uint8(j)
            bits[b] = byte
        if 8 * whole < n:
            byte = np.uint8(0)
            for j in range(n - 8 * whole):
                byte |= np.uint8(v[8 * whole + j] >= 0) << np.uint8(j)
            bits[whole] = byte
        for i in range(n):
            v[i] = _finite(v[i] - (scale if v[i] >= 0 else -scale))
        at += bits.size
        _write_scale(scale, out, at)
        at += 4


@_compiled
def mean_of_signs(rows, places, lengths):  # type: ignore[no-untyped-def]
    """Write the mean of each tensor to its place, added up in the order of rows."""
    at, count = 0, np.float32(len(rows))
    for t in range(lengths.size):
        n = lengths[t]
        size, whole = -(-n // 8), n // 8
        mean = carray(_pointer(places[t]), n)
        _fill(mean, np.float32(0))
        for r in range(len(rows)):
            scale, bits = _read_scale(rows[r], at + size), rows[r, at : at + size]
            for b in range(whole):
                byte = bits[b]
                for j in range(8):
                    mean[8 * b + j] += scale if (byte >> np.uint8(j)) & np.uint8(1) else -scale
            for j in range(n - 8 * whole):
                mean[8 * whole + j] += scale if (bits[whole] >> np.uint8(j)) & np.uint8(1) else -scale
        for i in range(n):
            mean[i] /= count
        at += size + 4


@_inlined
def _halves(key):  # type: ignore[no-untyped-def]
    """Return `draws.halves` of a key."""
    key = np.uint64(np.uint64(key ^ np.uint64(key >> _SHIFTS[0])) * _FACTORS[0])
    key = np.uint64(np.uint64(key ^ np.uint64(key >> _SHIFTS[1])) * _FACTORS[1])
    key = np.uint64(key ^ np.uint64(key >> np.uint64(31)))
    return np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))


@_compiled
def _scale(x, squared, block, partial):  # type: ignore[no-untyped-def]
    """Return the l2 norm of a bucket, or its largest magnitude, where NaN is above all."""
    if squared:
        return np.float32(np.sqrt(np.float64(_total(x, 2, block, partial))))
    bits, most = x.view(np.int32), np.int32(0)
    for i in range(bits.size):
        most = max(most, bits[i] & np.int32(0x7FFFFFFF))
    return _number(most)


@_compiled
def _bucket_levels(x, scale, steps, low, high, start, out):  # type: ignore[no-untyped-def]
    """Compute the codes of one bucket, in a function of its own: inlined into a larger one it takes twice as long."""
    _levels(x, scale, steps, low, high, start, out)


@_compiled
def encode_levels(places, errors, lengths, bucket, steps, each, squared, keys, shares, out):  # type: ignore[no-untyped-def]
    """Write each tensor's codes, `each` in a byte, and its buckets' scales; with errors, those of x + error, which keep
    the rest: what is counted as sent is the tensor's share of it."""
    block, partial = _room(lengths)
    codes, width = np.zeros(_longest(lengths) + 8, np.uint8), 8 // each
    inverse, most = np.float32(1 / steps), np.float32(steps)
    at = 0
    for t in range(lengths.size):
        n = lengths[t]
        low, high = _halves(keys[t])
        v = _fed(places, errors, t, n)
        packed, scales = -(-n // each), at + -(-n // each)
        for k in range(-(-n // bucket)):
            begin, end = k * bucket, min((k + 1) * bucket, n)
            part, chosen = v[begin:end], codes[begin:end]
            scale = _scale(part, squared, block, partial)
            _write_scale(scale, out, scales + 4 * k)
            _bucket_levels(part, scale, steps, low, high, begin, chosen)
            if errors.size:
                unit = scale * inverse
                for i in range(part.size):
                    level = np.float32(chosen[i]) - most
                    part[i] = _finite(part[i] - (np.float32(0) + level * unit) * shares[t])
        _fill(codes[n : n + 8], np.uint8(0))
        message = out[at : at + packed]
        if each == 1:
            _copy(codes[:n], message)
        elif each == 2:
            for b in range(packed):
                message[b] = codes[2 * b] | (codes[2 * b + 1] << np.uint8(4))
        else:
            for b in range(packed):
                byte = np.uint8(0)
                for j in range(each):
                    byte |= codes[each * b + j] << np.uint8(width * j)
                message[b] = byte
        at = scales + 4 * -(-n // bucket)


@_compiled
def mean_of_levels(rows, places, lengths, bucket, steps, each, shares):  # type: ignore[no-untyped-def]
    """Write the mean of each tensor, times its share, to its place, added up in the order of rows."""
    codes, width = np.empty(_longest(lengths) + 8, np.uint8), 8 // each
    mask, inverse, most = np.uint8((1 << width) - 1), np.float32(1 / steps), np.float32(steps)
    at, count = 0, np.float32(len(rows))
    for t in range(lengths.size):
        n = lengths[t]
        scales = at + -(-n // each)
        mean = carray(_pointer(places[t]), n)
        _fill(mean, np.float32(0))
        for r in range(len(rows)):
            message = rows[r, at:scales]
            if each == 1:
                for i in range(n):
                    codes[i] = message[i]
            elif each == 2:
                for b in range(message.size):
                    codes[2 * b], codes[2 * b + 1] = message[b] & np.uint8(15), message[b] >> np.uint8(4)
            else:
                for b in range(message.size):
                    for j in range(each):
                        codes[each * b + j] = (message[b] >> np.uint8(width * j)) & mask
            for k in range(-(-n // bucket)):
                begin, end = k * bucket, min((k + 1) * bucket, n)
                part, chosen = mean[begin:end], codes[begin:end]
                unit = _read_scale(rows[r], scales + 4 * k) * inverse
                for i in range(part.size):
                    part[i] += (np.float32(chosen[i]) - most) * unit
        for i in range(n):
            mean[i] = mean[i] / count * shares[t]
        at = scales + 4 * -(-n // bucket)
