"""Five ternary digits to a byte (base 243), and runs of bytes that say five zeros (Lim et al., 3LC, MLSys 2019).

A tensor is cut into five stretches of one length, and a byte joins one digit of each: 81·p0 + 27·p1 + 9·p2 + 3·p3 + p4.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.kernels.reference.trits import pack_trits, unpack_trits

_ZEROS = 121  # five digits that mean zero
_RUN, _LONGEST = 243, 14  # the first byte that stands for a run of two, and how many one byte may stand for


def length(count: int) -> int:
    """In bytes, before runs are shortened."""
    return -(-count // 5)


def pack(trits: Tensor) -> Tensor:
    """Digits -1, 0, 1."""
    return pack_trits(trits.reshape(-1).to(torch.int8))


def unpack(packed: Tensor, count: int) -> Tensor:
    """As int8."""
    return unpack_trits(packed, count)


def shorten(packed: Tensor) -> Tensor:
    """Runs of 2 to 14 bytes of zeros become one."""
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
    """What `shorten` was given."""
    data = short.cpu().numpy()
    counts = np.where(data >= _RUN, data.astype(np.int64) - _RUN + 2, 1)
    return torch.from_numpy(np.repeat(np.where(data >= _RUN, _ZEROS, data).astype(np.uint8), counts)).to(short.device)
