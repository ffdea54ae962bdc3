"""Elias omega codes: positive whole numbers in about log2 n + log2 log2 n + … bits, so that small ones take few.

A code is groups of bits and a zero: the last group is the number in binary, and each group before it gives the length
of the next. 1 is `0`, 2 is `100`, 16 is `10100100000`. Codes follow each other without gaps, the highest bit of a byte
first. (Elias, IEEE Trans. Inf. Theory 1975; in QSGD: Alistarh et al., NIPS 2017.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import ContractError

_MOST = (1 << 48) - 1  # the largest number whose code and a sign fit into 64 bits
_GROUPS = 4  # the most groups that such a code has

_Array = NDArray[Any]


def length(number: int) -> int:
    """Return the number of bits of a number's code."""
    bits = 1
    while number > 1:
        bits += number.bit_length()
        number = number.bit_length() - 1
    return bits


def encode(numbers: Tensor) -> Tensor:
    """Encode whole numbers from 1 to 2⁴⁸ - 1 as bytes."""
    codes, widths = _codes(numbers.reshape(-1).cpu().numpy().astype(np.int64))
    return written(codes, widths, numbers.device)


def decode(packed: Tensor, count: int) -> Tensor:
    """Decode `count` numbers, as int64."""
    return _read(packed, count, signed=False)


def encode_signed(numbers: Tensor) -> Tensor:
    """Encode whole numbers on both sides of zero: each is the code of its magnitude plus one, and a sign unless it is
    zero."""
    whole = numbers.reshape(-1).cpu().numpy().astype(np.int64)
    codes, widths = _codes(np.abs(whole) + 1)
    codes = np.where(whole != 0, codes << 1 | (whole < 0), codes)
    return written(codes, widths + (whole != 0), numbers.device)


def decode_signed(packed: Tensor, count: int) -> Tensor:
    """Decode `count` numbers that `encode_signed` encoded, as int64."""
    return _read(packed, count, signed=True)


def _codes(numbers: _Array) -> tuple[_Array, _Array]:
    """Return each number's code as a 64-bit word, and how many of its bits count; built from the last group to the
    first."""
    if numbers.size and not 1 <= numbers.min() <= numbers.max() <= _MOST:
        raise ValueError(f"Elias codes here are of numbers from 1 to {_MOST}")
    codes, widths = np.zeros_like(numbers), np.ones_like(numbers)
    rest = numbers
    while (more := rest > 1).any():
        group = np.frexp(rest)[1].astype(np.int64)
        codes = np.where(more, codes | rest << widths, codes)
        widths = np.where(more, widths + group, widths)
        rest = np.where(more, group - 1, 1)
    return codes, widths


def written(codes: _Array, widths: _Array, device: torch.device) -> Tensor:
    """Return the bytes of these codes, of so many bits each, without gaps."""
    ends = np.cumsum(widths)
    left = np.repeat(ends, widths) - np.arange(1, ends[-1] + 1 if ends.size else 1)  # remaining bits of the same code
    bits = np.repeat(codes, widths) >> left & 1
    return torch.from_numpy(np.packbits(bits.astype(np.uint8))).to(device)


def _read(packed: Tensor, count: int, signed: bool) -> Tensor:
    """Decode a code at every bit, then follow from each code to the one behind it, doubling the number of codes each
    time."""
    windows = windows_of(packed.cpu().numpy())
    numbers, used = _parsed(windows)
    size = len(windows)
    beyond = size + 1
    behind = used + 1 + (signed & (numbers > 1))
    follow = np.append(np.minimum(np.arange(size) + behind, beyond), [beyond, beyond])
    starts = np.zeros(min(count, 1), np.int64)
    jump = follow
    while len(starts) < count:
        starts = np.append(starts, jump[starts])[:count]
        jump = jump[jump]
    end = int(follow[starts[-1]]) if count else 0
    if not size - 8 < end <= size:
        raise ContractError(f"{packed.numel()} bytes are not the Elias codes of {count} numbers")
    found = numbers[starts]
    if signed:
        negative = windows[starts] << (used[starts] + 1).astype(np.uint64) >> np.uint64(63)
        found = np.where((found > 1) & (negative == 1), 1 - found, found - 1)
    return torch.from_numpy(found).to(packed.device)


def windows_of(data: _Array) -> _Array:
    """Return for every bit the 64 bits that begin with it, padded with zeros behind the end."""
    padded = np.append(data, np.zeros(8, np.uint8)).astype(np.uint64)
    words = np.zeros(len(data), np.uint64)
    for k in range(8):
        words = words << np.uint64(8) | padded[k : k + len(data)]
    places = np.arange(8, dtype=np.uint64)
    windows: _Array = words[:, None] << places | padded[8:, None] >> (np.uint64(8) - places)
    return windows.reshape(-1)


def _parsed(windows: _Array) -> tuple[_Array, _Array]:
    """Return the number whose code each window begins with, and the bits of its groups; where no code begins, any
    number."""
    numbers, used = np.ones(len(windows), np.int64), np.zeros(len(windows), np.int64)
    at = np.arange(len(windows))
    for _ in range(_GROUPS):
        rest = windows[at] << used[at].astype(np.uint64)
        more = rest >> np.uint64(63) == 1
        at, rest = at[more], rest[more]
        group = np.minimum(numbers[at] + 1, 48)
        numbers[at] = (rest >> (64 - group).astype(np.uint64)).astype(np.int64)
        used[at] = np.minimum(used[at] + group, 62)
    return numbers, used
