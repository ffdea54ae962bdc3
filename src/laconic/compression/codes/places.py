"""Places, ascending positions in a flat tensor, as bytes: in log2 n bits or in 32 each, as a bitmap, as coded gaps."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.compression.codes import bits, golomb

PLACES = ("packed", "plain", "bitmap", "golomb")


def most(code: str, k: int, numel: int) -> int:
    """Return the largest number of bytes that k places take."""
    if code in ("bitmap", "golomb"):
        return -(-numel // 8) if code == "bitmap" else golomb.most(k, numel)
    return 4 * k if code == "plain" else bits.length(k, bits.width(numel - 1))


def write(code: str, places: Tensor, numel: int) -> Tensor:
    """Encode places as bytes."""
    if code == "bitmap":
        marked = torch.zeros(numel, dtype=torch.uint8, device=places.device)
        marked[places] = 1
        return bits.pack(marked, 1)
    if code == "plain":
        return places.to(torch.int32).view(torch.uint8)
    if code == "golomb":
        return golomb.write(places, numel)
    return bits.pack(places, bits.width(numel - 1))


def read(code: str, payload: Tensor, k: int, numel: int) -> tuple[Tensor, Tensor]:
    """Return the k places of a payload, and the bytes behind them."""
    if code == "golomb":
        places, head = golomb.read(payload, k, numel)
        return places, payload[head:]
    written, rest = payload.tensor_split([most(code, k, numel)])
    if code == "bitmap":
        return torch.nonzero(bits.unpack(written, 1, numel)).view(-1), rest
    if code == "plain":
        return written.clone().view(torch.int32).long(), rest
    return bits.unpack(written, bits.width(numel - 1), k).long(), rest
