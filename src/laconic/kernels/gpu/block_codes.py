"""The arithmetic of blocks that share a scale, for Triton bodies: the bits of `reference.blocks`.

A format of values is given as constants: `MANTISSA` bits (-1: integers), the `BIAS` of its exponent, its
largest value `MOST` and that value's code `LAST`.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from laconic.kernels.gpu.means import MAGIC
from laconic.kernels.gpu.triton_helpers import INTERPRETED, draw
from laconic.kernels.reference.blocks import BlockFormat
from laconic.kernels.reference.short_floats import short_floats

_BIASES = {"e4m3": 7, "e5m2": 15, "e2m1": 1}
_INFINITE = tl.constexpr(0x7F800000)
_SMALLEST = tl.constexpr(0x00400000)  # the pattern of 2 to the -127


def constants(how: BlockFormat) -> dict[str, int | float | bool]:
    """Return a format as the constants of these bodies: `TOP` and `POWER` are what is behind the leading one of the
    format's largest value, in float32, and its exponent by `frexp`."""
    if how.whole:
        most = float(how.whole)
        return {"MANTISSA": -1, "BIAS": 0, "MOST": most, "LAST": how.whole, "TOP": 0, "POWER": 0, "E8M0": False}
    form = short_floats()[how.values]
    mantissa, power = math.frexp(form.most)
    top, last = round((2 * mantissa - 1) * (1 << 23)), len(form.levels) - 1
    shape = {"MANTISSA": form.mantissa, "BIAS": _BIASES[how.values], "MOST": form.most, "LAST": last}
    return shape | {"TOP": top, "POWER": power, "E8M0": how.scales == "e8m0"}


@triton.jit
def power_code(pattern, TOP: tl.constexpr, POWER: tl.constexpr, CEIL: tl.constexpr):
    """Return the byte of a block's power of two, from the pattern of its largest magnitude."""
    code = (pattern >> 23) + (1 - POWER)
    if CEIL:
        code += ((pattern & 0x7FFFFF) > TOP).to(tl.int32)
    return tl.where(pattern >= _INFINITE, 255, tl.minimum(tl.maximum(code, 0), 254))


@triton.jit
def power_value(code):
    """Return the power of two that a byte stands for; 255 is no number."""
    pattern = tl.where(code == 0, _SMALLEST, code << 23)
    return tl.where(code == 255, float("nan"), pattern.to(tl.float32, bitcast=True))


@triton.jit
def power_inverse(code):
    """Return what values are multiplied by in place of a division by the power of two; 1 where it is no number."""
    pattern = tl.where(code == 254, _SMALLEST, (254 - code) << 23)
    return tl.where(code == 255, 1.0, pattern.to(tl.float32, bitcast=True))


@triton.jit
def share_of(v, most):
    """Return v/most, correctly rounded where it can matter; `most` is a row's largest magnitude.

    On a GPU all values of a row share the correctly rounded inverse of the divisor, and the remainder of a quotient
    corrects it: once so that it is off by less than a place, and then to the nearest (Markstein). Both numbers are
    first brought to a size where no remainder is too small for a float.
    """
    divisor = tl.where(most == most, tl.where(most != 0, most, 1.0), float("inf"))
    if INTERPRETED:
        return tl.div_rn(v, tl.broadcast_to(divisor, v.shape))
    else:
        size = tl.where(divisor < 2.0**-40, 2.0**64, tl.where(divisor > 2.0**64, 2.0**-64, 1.0))
        endless = divisor == float("inf")
        divisor = tl.where(endless, 1.0, divisor * size)
        inverse = tl.where(endless, 0.0, tl.div_rn(tl.full(divisor.shape, 1.0, tl.float32), divisor))
        v = v * size
        divisor, inverse = tl.broadcast_to(divisor, v.shape), tl.broadcast_to(inverse, v.shape)
        quotient = v * inverse
        quotient = tl.fma(tl.fma(-quotient, divisor, v), inverse, quotient)
        return tl.fma(tl.fma(-quotient, divisor, v), inverse, quotient)


@triton.jit
def _whole(t, place, low, high, RANDOM: tl.constexpr):
    """Return a number below 2²² as a whole one: the nearest, of two the even one, or at random one of both."""
    if RANDOM:
        below = tl.floor(t)
        return below + (draw(place, low, high).to(tl.float32) * (2.0**-24) < t - below).to(tl.float32)
    else:
        return (t + MAGIC) - MAGIC


@triton.jit
def integer(share, place, low, high, MOST: tl.constexpr, RANDOM: tl.constexpr):
    """Return the whole number from -MOST to MOST for a share of the largest magnitude; zero for what is no number."""
    level = share * MOST
    if RANDOM:
        level += draw(place, low, high).to(tl.float32) * (2.0**-24)
    level = tl.where(level == level, tl.minimum(tl.maximum(level, -MOST), MOST), 0.0)
    return tl.floor(level) if RANDOM else (level + MAGIC) - MAGIC


@triton.jit
def short_float(x, place, low, high, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr,
                RANDOM: tl.constexpr):  # fmt: skip
    """Return the code and the value of a number that is not negative; zero for what is no number.

    In steps of the format's at its own size it is a whole number, and a code counts these steps from zero on.
    """
    x = tl.where(x == x, tl.minimum(x, MOST), 0.0)
    exponent = tl.maximum(x.to(tl.int32, bitcast=True) >> 23, 128 - BIAS)
    steps = x * ((254 + MANTISSA - exponent) << 23).to(tl.float32, bitcast=True)
    whole = _whole(steps, place, low, high, RANDOM)
    code = whole.to(tl.int32) + ((exponent - (128 - BIAS)) << MANTISSA)
    return code, whole * ((exponent - MANTISSA) << 23).to(tl.float32, bitcast=True)


@triton.jit
def float_value(code, BITS: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LAST: tl.constexpr):
    """Return the value of a code with its sign: its bits in the places that a float32 has for them, and the other
    bias."""
    HALF: tl.constexpr = 1 << (BITS - 1)
    SIZE: tl.constexpr = 2.0 ** (127 - BIAS)
    size = code & (HALF - 1)
    pattern = (size << (23 - MANTISSA)) | ((code & HALF) << (32 - BITS))
    value = pattern.to(tl.float32, bitcast=True) * SIZE
    if LAST + 1 < HALF:
        value = tl.where(size > LAST, float("nan"), value)
    return value
