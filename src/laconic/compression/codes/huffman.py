"""Huffman codes: numbers that occur often take few bits (Huffman, 1952); both sides know how often each occurs.

Codes are canonical: in the order of their lengths, and of the numbers among equals, each begins where the one before it
ends, if a code of b bits is 2⁻ᵇ wide. So a run of bits is decoded by looking for its place among the beginnings. Codes
follow each other without gaps, the highest bit of a byte first.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.compression.codes.elias import windows_of, written
from laconic.errors import ContractError

_Array = NDArray[Any]


def lengths(counts: _Array) -> _Array:
    """Return the length of every number's code in bits; 0 if a number does not occur, or is the only one that does."""
    found = np.zeros(len(counts), np.int64)
    heap = [(int(counts[number]), int(number)) for number in np.flatnonzero(counts)]
    heapq.heapify(heap)
    parents: dict[int, int] = {}
    node = len(counts)
    while len(heap) > 1:
        (few, one), (more, other) = heapq.heappop(heap), heapq.heappop(heap)
        parents[one] = parents[other] = node
        heapq.heappush(heap, (few + more, node))
        node += 1
    depths = {node - 1: 0}
    for child in sorted(parents, reverse=True):  # parents were made after their children
        depths[child] = depths[parents[child]] + 1
        if child < len(counts):
            found[child] = depths[child]
    return found


def write(numbers: Tensor, counts: Tensor) -> Tensor:
    """Encode whole numbers as bytes; `counts[i]` of them are i."""
    order, begin, widths = _codes(counts.cpu().numpy())
    words, used = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
    words[order] = (begin >> (64 - widths).astype(np.uint64)).astype(np.int64) if len(order) > 1 else 0
    used[order] = widths
    places = numbers.reshape(-1).cpu().numpy()
    return written(words[places], used[places], numbers.device)


def read(packed: Tensor, counts: Tensor) -> Tensor:
    """Return the encoded numbers, as int64, in their order."""
    order, begin, widths = _codes(counts.cpu().numpy())
    count = int(counts.sum())
    if len(order) <= 1:
        if packed.numel():
            raise ContractError(f"{packed.numel()} bytes where one number alone occurs and none is needed")
        return torch.full((count,), int(order[0]) if len(order) else 0, device=packed.device)
    windows = windows_of(packed.cpu().numpy())
    size = len(windows)
    found = np.searchsorted(begin, windows, side="right") - 1
    follow = np.append(np.minimum(np.arange(size) + widths[found], size + 1), [size + 1, size + 1])
    starts, jump = np.zeros(1, np.int64), follow
    while len(starts) < count:  # follow from each code to the one behind it, doubling their number
        starts = np.append(starts, jump[starts])[:count]
        jump = jump[jump]
    if not size - 8 < follow[starts[-1]] <= size:
        raise ContractError(f"{packed.numel()} bytes are not the Huffman codes of {count} numbers")
    return torch.from_numpy(order[found[starts]]).to(packed.device)


def _codes(counts: _Array) -> tuple[_Array, _Array, _Array]:
    """Return the numbers that occur in the order of their codes, where each code begins among 64-bit words, and its
    length."""
    each = lengths(counts)
    occur = np.flatnonzero(counts)
    order = occur[np.argsort(each[occur], kind="stable")]
    wide = np.uint64(1) << (64 - each[order]).clip(max=63).astype(np.uint64)
    return order, np.append(np.uint64(0), np.cumsum(wide[:-1], dtype=np.uint64))[: len(order)], each[order]
