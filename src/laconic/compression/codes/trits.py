"""Five ternary digits to a byte (base 243), with runs of all-zero bytes shortened (Lim et al., 3LC, MLSys 2019).

A tensor is cut into five stretches of equal length, and a byte joins one digit of each: 81·p0 + 27·p1 + 9·p2 + 3·p3 +
p4.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.kernels.reference.trits import pack_trits, unpack_trits

_ZEROS = 121  # the byte of five zeros
_RUN, _LONGEST = 243, 14  # the byte that stands for a run of two, and the longest run of one byte


def length(count: int) -> int:
    """Return the bytes of `count` digits before runs are shortened."""
    return -(-count // 5)


def pack(trits: Tensor) -> Tensor:
    """Pack digits -1, 0 and 1 into bytes."""
    return pack_trits(trits.reshape(-1).to(torch.int8))


def unpack(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` digits, as int8."""
    return unpack_trits(packed, count)


def shorten(packed: Tensor) -> Tensor:
    """Replace runs of 2 to 14 all-zero bytes by one byte each."""
    data = packed.cpu().numpy()
    zero = np.concatenate([[False], data == _ZEROS, [False]])
    starts, ends = np.flatnonzero(zero[1:] & ~zero[:-1]), np.flatnonzero(zero[:-1] & ~zero[1:])
    place, begin = np.zeros(len(data), np.int64), np.zeros(len(data), bool)
    inside = np.repeat(np.arange(len(starts)), ends - starts)
    at = np.flatnonzero(data == _ZEROS)
    place[at] = at - starts[inside]
    begin[at] = place[at] % _LONGEST == 0
    out = np.where(data == _ZEROS, 0, data)
    rest = np.minimum(_LONGEST, ends[inside] - at)
    out[at] = np.where(rest == 1, _ZEROS, _RUN - 2 + rest)
    return torch.from_numpy(out[(data != _ZEROS) | begin].astype(np.uint8)).to(packed.device)


def lengthen(short: Tensor) -> Tensor:
    """Restore the runs that `shorten` replaced."""
    data = short.cpu().numpy()
    counts = np.where(data >= _RUN, data.astype(np.int64) - _RUN + 2, 1)
    return torch.from_numpy(np.repeat(np.where(data >= _RUN, _ZEROS, data).astype(np.uint8), counts)).to(short.device)
