"""Casts to 16-bit formats and back, compiled by Numba to the CPU's own conversions.

torch converts to binary16 value by value on some CPUs, many times slower than memory is; these loops become vector
instructions, and divide in the same pass. Numba has no such type for CPUs, so that two conversions are written as
LLVM's instructions here.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

from laconic.kernels.cpu.loops import _compiled, _inlined

intrinsic: Any = _intrinsic  # what it decorates is called with one argument less
_TILE = 1024  # values that are divided and then rounded


@cache
def converts_fp16() -> bool:
    """Return whether this CPU has instructions for binary16: those of x86 before 2012 have none."""
    return platform.machine() in ("aarch64", "arm64") or llvmlite.binding.get_host_cpu_features().get("f16c", False)


@intrinsic
def _rounded(typing: Any, x: Any) -> Any:
    """Round a float32 to binary16, to nearest, ties to even, and return its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _widened(typing: Any, bits: Any) -> Any:
    """Return the float32 of binary16's bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@_inlined
def _divided(x, divisor, tile):  # type: ignore[no-untyped-def]
    """Compute x / divisor; where its inverse is exact (a power of two) by a product, which is as exact and faster."""
    inverse, single = np.float32(1) / np.float32(divisor), np.float32(divisor)
    if divisor & (divisor - 1) == 0:
        for i in range(x.size):
            tile[i] = x[i] * inverse
    else:
        for i in range(x.size):
            tile[i] = x[i] / single


@_compiled
def to_fp16(x, divisor, out, first, last):  # type: ignore[no-untyped-def]
    """Round x / divisor to binary16, tile by tile from `first` to `last`."""
    tile = np.empty(_TILE, np.float32)
    for begin in range(first, last, _TILE):
        values, short = x[begin : min(begin + _TILE, last)], out[begin : min(begin + _TILE, last)]
        _divided(values, divisor, tile)
        for i in range(values.size):
            short[i] = _rounded(tile[i])


@_compiled
def from_fp16(x, out, first, last):  # type: ignore[no-untyped-def]
    """Widen binary16."""
    x, out = x[first:last], out[first:last]
    for i in range(x.size):
        out[i] = _widened(x[i])


@_compiled
def to_bf16(x, divisor, out, first, last):  # type: ignore[no-untyped-def]
    """Round x / divisor to bfloat16, to nearest, ties to even; what is not a number becomes one NaN."""
    tile = np.empty(_TILE, np.float32)
    bits = tile.view(np.uint32)
    for begin in range(first, last, _TILE):
        values, short = x[begin : min(begin + _TILE, last)], out[begin : min(begin + _TILE, last)]
        _divided(values, divisor, tile)
        for i in range(values.size):
            odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
            raised = np.uint32(bits[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16)
            short[i] = np.uint16(raised) if tile[i] == tile[i] else np.uint16(0x7FC0)


@_compiled
def from_bf16(x, out, first, last):  # type: ignore[no-untyped-def]
    """Widen bfloat16 to the bits of float32."""
    x, out = x[first:last], out[first:last]
    for i in range(x.size):
        out[i] = np.uint32(x[i]) << np.uint32(16)
