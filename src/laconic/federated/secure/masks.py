"""Masks: a key expanded by ChaCha20 into numbers of a ring of integers modulo a power of two."""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from laconic import kernels

Ring = NDArray[np.uint32]
"""Numbers modulo 2³²; modulo a smaller power of two after `reduced`, before or after any sums."""


def expanded(key: bytes, numel: int) -> Ring:
    """Return so many numbers that nobody without the key tells from random ones. A key is expanded for one purpose."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * numel))
    return np.frombuffer(stream, dtype="<u4")


def reduced(numbers: Ring, bits: int) -> Ring:
    """Return numbers modulo two to the power of `bits`."""
    return numbers & np.uint32(2**bits - 1)


def signed(numbers: Ring, bits: int) -> NDArray[np.int64]:
    """Return the numbers of the ring as those from -2^(bits - 1) on."""
    found = numbers.astype(np.int64)
    found[found >= 2 ** (bits - 1)] -= 2**bits
    return found


def packed(numbers: Ring, bits: int) -> bytes:
    """Return numbers below two to the power of `bits` without gaps between them."""
    return kernels.pack_numbers(torch.from_numpy(numbers.astype(np.int64)), bits).numpy().tobytes()


def unpacked(written: bytes, bits: int, numel: int) -> Ring:
    """Return the numbers that were packed."""
    codes = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    return kernels.unpack_numbers(codes, bits, numel).numpy().astype(np.uint32)


def packed_bytes(numel: int, bits: int) -> int:
    """Return how many bytes `packed` makes."""
    return -(-numel * bits // 8)
