"""Powers of two in nine bits, for lists of tensors on CPUs, compiled by Numba: the bytes and bits of `codes`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.kernels import codes
from laconic.kernels.cpu.lists import _bits, _fed, _finite, _halves, _number, _pointer, carray
from laconic.kernels.cpu.loops import _compiled, _draw, _fill, _inlined, _map
from laconic.kernels.cpu.whole import _NONE, _numbers, _room, _single, _spans
from laconic.kernels.lists import listed
from laconic.kernels.reference.exponents import WIDTH

_TILE = 1024  # codes that are computed, and then packed
_MANTISSAS = np.float32(1 << 24)


def encode_natural(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, keys: Sequence[int]) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not xs.plain or (errors is not None and not errors.plain):
        return codes.encode_natural(_single(), xs, errors, keys)
    starts, size = _starts(xs.lengths)
    message = torch.empty(size, dtype=torch.uint8)
    memory = _NONE if errors is None else errors.table.numpy()[0]
    places, lengths = xs.table.numpy()
    given = (places, memory, lengths, starts, np.array(keys, np.uint64), message.numpy())
    _map(lambda span: _encode(*given, *span), _spans(xs.lengths))
    return message


def decode_natural(packed: Tensor, count: int) -> Tensor:
    values = torch.empty(count)
    _decode(packed.contiguous().numpy(), values.numpy(), False)
    return values


def mean_of_natural(rows: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
    means = _room(lengths, None)
    given = (rows.contiguous().numpy(), *means.table.numpy(), _starts(lengths)[0])
    _map(lambda span: _mean(*given, *span), _spans(means.lengths))
    return means


def _starts(lengths: Sequence[int]) -> tuple[Any, int]:
    """Return where each tensor's part of a message begins, and the message's length."""
    *starts, size = accumulate((-(-n * WIDTH // 8) for n in lengths), initial=0)
    return _numbers(starts), size


@_inlined
def _power(code):  # type: ignore[no-untyped-def]
    return _number(np.int32(np.int32(np.int32(code & 0xFF) << np.int32(23)) | np.int32(np.int32(code >> 8) << 31)))


@_compiled
def _exponents(x, low, high, start, out):  # type: ignore[no-untyped-def]
    """Compute codes of sign and exponent, by random rounding to a power of two."""
    for i in range(x.size):
        pattern = _bits(x[i])
        draw = np.int32(np.int32(_draw(start + i, low, high) * _MANTISSAS) >> np.int32(1))
        exponent = np.int32(np.int32(pattern >> np.int32(23)) & np.int32(0xFF))
        raised = (draw < np.int32(pattern & np.int32(0x7FFFFF))) & (exponent > 0) & (exponent < 254)
        out[i] = np.int32(exponent + np.int32(raised)) | (np.int32(256) if pattern < 0 else np.int32(0))


@_compiled
def _keep(given, v):  # type: ignore[no-untyped-def]
    """Leave in v what is not sent."""
    for i in range(v.size):
        v[i] = _finite(v[i] - _power(given[i]))


@_compiled
def _pack(given, count, out):  # type: ignore[no-untyped-def]
    """Pack so many codes, behind which lie zeros up to eight; eight take nine bytes."""
    for group in range(-(-count // 8)):
        first, at = 8 * group, 9 * group
        before = np.int32(0)
        for j in range(9):
            code = given[first + j] if j < 8 else np.int32(0)
            if at + j < out.size:
                out[at + j] = np.uint8(((code << j) | (before >> (9 - j))) & 0xFF)
            before = code


@_compiled
def _encode(places, errors, lengths, starts, keys, out, first, last):  # type: ignore[no-untyped-def]
    tile = np.empty(_TILE + 8, np.int32)
    for t in range(first, last):
        n, at = lengths[t], starts[t]
        low, high = _halves(keys[t])
        v = _fed(places, errors, t, n)
        for begin in range(0, n, _TILE):
            part = v[begin : min(begin + _TILE, n)]
            _exponents(part, low, high, begin, tile)
            _fill(tile[part.size : part.size + 8], np.int32(0))
            place = at + begin // 8 * 9
            _pack(tile, part.size, out[place : place + -(-part.size * 9 // 8)])
            if errors.size:
                _keep(tile, part)


@_compiled
def _decode(packed, out, added):  # type: ignore[no-untyped-def]
    """Write the values of codes, or add them."""
    for group in range(-(-out.size // 8)):
        at, first = 9 * group, 8 * group
        for j in range(min(8, out.size - first)):
            code = np.int32(packed[at + j] >> j) | np.int32(np.int32(packed[at + j + 1]) << (8 - j))
            value = _power(code & 0x1FF)
            out[first + j] = out[first + j] + value if added else value


@_compiled
def _mean(rows, places, lengths, starts, first, last):  # type: ignore[no-untyped-def]
    """Write the means of tensors `first` to `last` to their places, added up in the order of rows."""
    count = np.float32(len(rows))
    for t in range(first, last):
        mean = carray(_pointer(places[t]), lengths[t])
        _fill(mean, np.float32(0))
        for r in range(len(rows)):
            _decode(rows[r, starts[t] :], mean, True)
        for i in range(mean.size):
            mean[i] /= count
