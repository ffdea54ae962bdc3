"""Messages of blocks that share a scale, for lists of tensors, compiled by Numba: the bytes and bits of `blocks`.

A format of values is a row of numbers (`Shape`) and a table of what each code stands for. Loops over the values of a
block are functions of their own, so that the compiler turns them into vector instructions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from laconic.kernels.cpu.lists import (
    _bits,
    _fed,
    _finite,
    _halves,
    _number,
    _pointer,
    _read_scale,
    _write_scale,
    carray,
)
from laconic.kernels.cpu.loops import _compiled, _draw, _fill, _inlined, _longest
from laconic.kernels.reference.blocks import NO_NUMBER, BlockFormat
from laconic.kernels.reference.short_floats import decoded, short_floats

_BIASES = {"e4m3": 7, "e5m2": 15, "e2m1": 1}
_INFINITE = np.int32(0x7F800000)
_SMALLEST = np.int32(0x00400000)  # the pattern of 2 to the -127
_MAGIC = np.float32(1.5 * 2**23)  # added to a small number it leaves the nearest whole one, of two the even one


class Shape(NamedTuple):
    """A format of blocks as numbers: for integers `mantissa` is -1.

    `most` is the largest value, `top` what float32 has behind its leading one and `power` its exponent by `frexp`;
    `no_number` is the code of NaN. Decoded values are multiplied by `inverse` before their block's scale.
    """

    mantissa: int
    bias: int
    most: Any
    top: int
    power: int
    sign: int
    no_number: int
    inverse: Any
    powers: bool
    ceil: bool
    random: bool


@cache
def shape_of(how: BlockFormat) -> tuple[Shape, Any]:
    """Return a format's numbers, and the value of each code."""
    if how.whole:
        table = torch.arange(256, dtype=torch.uint8).view(torch.int8).float()
        most, sign, one = np.float32(how.whole), how.whole + 1, np.float32(1)
        return Shape(-1, 0, most, 0, 0, sign, 0, one, False, how.ceil, how.stochastic), table.numpy()
    form, powers = short_floats()[how.values], how.scales == "e8m0"
    mantissa, power = np.frexp(form.most)
    table = decoded(torch.arange(1 << form.width), form)
    shape = Shape(
        mantissa=form.mantissa,
        bias=_BIASES[how.values],
        most=np.float32(form.most),
        top=round((2 * mantissa - 1) * (1 << 23)),
        power=int(power),
        sign=1 << (form.width - 1),
        no_number=0 if powers else 127,
        inverse=np.float32(1 if powers else 1 / form.most),
        powers=powers,
        ceil=how.ceil,
        random=how.stochastic and powers,
    )
    return shape, table.numpy()


@_compiled
def _largest(x):  # type: ignore[no-untyped-def]
    """Return the largest magnitude's pattern, where NaN is above all."""
    most = np.int32(0)
    for i in range(x.size):
        most = max(most, np.int32(_bits(x[i]) & np.int32(0x7FFFFFFF)))
    return most


@_inlined
def _power_code(pattern, shape):  # type: ignore[no-untyped-def]
    """Return the byte of a block's power of two, from the pattern of its largest magnitude."""
    code = (pattern >> 23) + 1 - shape.power
    if shape.ceil and (pattern & 0x7FFFFF) > shape.top:
        code += 1
    return NO_NUMBER if pattern >= _INFINITE else min(max(code, 0), NO_NUMBER - 1)


@_inlined
def _power_value(code):  # type: ignore[no-untyped-def]
    if code == NO_NUMBER:
        return np.float32(np.nan)
    return _number(_SMALLEST if code == 0 else np.int32(code << 23))


@_compiled
def _integers(x, divisor, most, random, low, high, start, out):  # type: ignore[no-untyped-def]
    """Compute whole numbers of 1/`most` of the largest magnitude, as bytes; zero for what is no number."""
    for i in range(x.size):
        level = x[i] / divisor * most
        if random:
            level += _draw(start + i, low, high)
        level = level if level == level else np.float32(0)
        level = min(max(level, -most), most)
        level = np.floor(level) if random else (level + _MAGIC) - _MAGIC
        out[i] = np.uint8(np.int32(level))


@_compiled
def _floats(x, divisor, factor, shape, low, high, start, out):  # type: ignore[no-untyped-def]
    """Compute short floats of x/divisor·factor: in steps of the format's at its own size a value is a whole number, and
    a code counts these steps from zero on."""
    mantissa, least = np.int32(shape.mantissa), np.int32(128 - shape.bias)
    most, random, none = shape.most, shape.random, np.int32(shape.no_number)
    sign, above = np.int32(shape.sign), np.int32(254 + shape.mantissa)
    for i in range(x.size):
        value = x[i] / divisor * factor
        pattern = _bits(value)
        size = _number(np.int32(pattern & np.int32(0x7FFFFFFF)))
        size = size if size < most else most  # also NaN
        exponent = max(np.int32(_bits(size) >> np.int32(23)), least)
        steps = size * _number(np.int32(np.int32(above - exponent) << np.int32(23)))
        if random:
            below = np.floor(steps)
            whole = below + (np.float32(1) if _draw(start + i, low, high) < steps - below else np.float32(0))
        else:
            whole = (steps + _MAGIC) - _MAGIC
        code = np.int32(np.int32(whole) + np.int32(np.int32(exponent - least) << mantissa))
        code = np.int32(code | (sign if pattern < 0 else np.int32(0)))
        out[i] = np.uint8(code if value == value else none)


@_compiled
def _codes(x, largest, scale, shape, low, high, start, out):  # type: ignore[no-untyped-def]
    """Compute the codes of one block."""
    if shape.powers:
        divisor = scale if scale == scale else np.float32(1)
        _floats(x, divisor, np.float32(1), shape, low, high, start, out)
        return
    divisor = np.float32(np.inf) if largest > _INFINITE else (scale if largest else np.float32(1))
    if shape.mantissa < 0:
        _integers(x, divisor, shape.most, shape.random, low, high, start, out)
    else:
        _floats(x, divisor, shape.most, shape, low, high, start, out)


@_inlined
def _unit(scale, shape):  # type: ignore[no-untyped-def]
    """Return what a decoded value is multiplied by last."""
    return scale / shape.most if shape.mantissa < 0 else scale


@_inlined
def _value(code, unit, whole, inverse, table):  # type: ignore[no-untyped-def]
    """Return what a code stands for; `whole` numbers are converted faster than looked up."""
    return np.float32(np.int8(code)) * unit if whole else table[code] * inverse * unit


@_compiled
def _keep(codes, unit, shape, table, share, v):  # type: ignore[no-untyped-def]
    """Leave in v what is not sent."""
    whole, inverse = shape.mantissa < 0, shape.inverse
    for i in range(v.size):
        v[i] = _finite(v[i] - _value(codes[i], unit, whole, inverse, table) * share)


@_compiled
def _add(codes, unit, shape, table, mean):  # type: ignore[no-untyped-def]
    whole, inverse = shape.mantissa < 0, shape.inverse
    for i in range(mean.size):
        mean[i] += _value(codes[i], unit, whole, inverse, table)


@_compiled
def _write(codes, unit, shape, table, mean):  # type: ignore[no-untyped-def]
    whole, inverse = shape.mantissa < 0, shape.inverse
    for i in range(mean.size):
        mean[i] = _value(codes[i], unit, whole, inverse, table)


@_compiled
def _pack(codes, out):  # type: ignore[no-untyped-def]
    """Write the lower halves of codes, two in a byte."""
    for b in range(out.size):
        out[b] = np.uint8(codes[2 * b] & np.uint8(15)) | np.uint8(codes[2 * b + 1] << np.uint8(4))


@_compiled
def _unpack(packed, sign, codes):  # type: ignore[no-untyped-def]
    """Read such codes; integers repeat their `sign`, a bit, in the upper half."""
    for b in range(packed.size):
        low, high = np.uint8(packed[b] & np.uint8(15)), np.uint8(packed[b] >> np.uint8(4))
        codes[2 * b] = np.uint8(np.uint8(low ^ sign) - sign)
        codes[2 * b + 1] = np.uint8(np.uint8(high ^ sign) - sign)


@_compiled
def encode_blocks(places, errors, lengths, starts, block, shape, table, keys, shares, out, first, last):  # type: ignore[no-untyped-def]
    """Write the codes and scales of tensors `first` to `last`, whose parts of the message begin at `starts`; with
    errors, those of x + error, which keep the rest: what is counted as sent is the tensor's share of it."""
    short = shape.sign == 8
    room = np.zeros(_longest(lengths[first:last]) + 2 if short else 0, np.uint8)
    for t in range(first, last):
        n, at = lengths[t], starts[t]
        low, high = _halves(keys[t])
        v = _fed(places, errors, t, n)
        packed = -(-n // 2) if short else n
        codes, length, scales = room if short else out[at : at + n], block if block else max(1, n), at + packed
        for k in range(-(-n // length)):
            begin, end = k * length, min((k + 1) * length, n)
            part, chosen = v[begin:end], codes[begin:end]
            largest = _largest(part)
            if shape.powers:
                code = _power_code(largest, shape)
                out[scales + k] = code
                scale = _power_value(code)
            else:
                scale = _number(largest)
                _write_scale(scale, out, scales + 4 * k)
            _codes(part, largest, scale, shape, low, high, begin, chosen)
            if errors.size:
                _keep(chosen, _unit(scale, shape), shape, table, shares[t], part)
        if short:
            codes[n] = 0
            _pack(codes, out[at : at + packed])


@_compiled
def mean_of_blocks(rows, places, lengths, starts, block, shape, table, shares, first, last):  # type: ignore[no-untyped-def]
    """Write the means of tensors `first` to `last`, times their shares, to their places, added up in the order of
    rows; the mean of one message is its values."""
    short, count = shape.sign == 8, np.float32(len(rows))
    room = np.empty(_longest(lengths[first:last]) + 2 if short else 0, np.uint8)
    for t in range(first, last):
        n, at = lengths[t], starts[t]
        length, scales = block if block else max(1, n), at + (-(-n // 2) if short else n)
        mean = carray(_pointer(places[t]), n)
        if len(rows) > 1:
            _fill(mean, np.float32(0))
        for r in range(len(rows)):
            codes = room if short else rows[r, at:scales]
            if short:
                _unpack(rows[r, at:scales], np.uint8(8 if shape.mantissa < 0 else 0), codes)
            for k in range(-(-n // length)):
                begin, end = k * length, min((k + 1) * length, n)
                scale = _power_value(rows[r, scales + k]) if shape.powers else _read_scale(rows[r], scales + 4 * k)
                given = (codes[begin:end], _unit(scale, shape), shape, table, mean[begin:end])
                if len(rows) > 1:
                    _add(*given)
                else:
                    _write(*given)
        if len(rows) > 1:
            for i in range(n):
                mean[i] /= count
        for i in range(n):
            mean[i] *= shares[t]
