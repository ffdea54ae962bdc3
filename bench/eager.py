"""The hot loops of compression as libraries write them: one operation of torch after another over whole tensors.

What `bench/kernels.py` compares with, eager and compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack_bits(bits: Tensor) -> Tensor:
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=bits.device)
    return (bits.view(-1, 8).to(torch.uint8) * weights).sum(dim=1, dtype=torch.uint8)


def signs(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    error += x
    scale = error.abs().mean()
    positive = error >= 0
    error -= torch.where(positive, scale, -scale)
    return pack_bits(positive), scale


def levels(x: Tensor, steps: int = 7, bucket: int = 512) -> tuple[Tensor, Tensor]:
    rows = x.view(-1, bucket)
    scales = rows.abs().amax(dim=1, keepdim=True)
    a = rows.abs() / scales * steps
    low = a.floor()
    level = low + (torch.rand_like(a) < a - low)
    codes = (level + (rows < 0) * (steps + 1)).to(torch.uint8).view(-1)
    each = {1: 4, 7: 2, 127: 1}[steps]
    parts = codes.view(-1, each)
    packed = parts[:, 0]
    for k in range(1, each):
        packed = packed | (parts[:, k] << (8 // each * k))
    return packed, scales


def fed_levels(x: Tensor, error: Tensor) -> Tensor:
    error += x
    packed, scales = levels(error)
    codes = torch.stack([packed & 15, packed >> 4], dim=1).view(-1, 512).float()
    error -= (torch.where(codes > 7, 8 - codes, codes) / 7 * scales).view(-1)
    return packed


def mean_of_signs(rows: Tensor, n: int) -> Tensor:
    total = torch.zeros(n, device=rows.device)
    places = torch.arange(8, dtype=torch.uint8, device=rows.device)
    for row in rows:
        scale = row[-4:].view(torch.float32)
        bits = ((row[:-4, None] >> places) & 1).view(-1).bool()
        total += torch.where(bits, scale, -scale)
    return total / len(rows)


def mean_of_levels(rows: Tensor, n: int) -> Tensor:
    total = torch.zeros(n // 512, 512, device=rows.device)
    for row in rows:
        packed, scales = row[: n // 2], row[n // 2 :].view(torch.float32)
        codes = torch.stack([packed & 15, packed >> 4], dim=1).view(-1, 512).float()
        total += torch.where(codes > 7, 8 - codes, codes) / 7 * scales[:, None]
    return total / len(rows)


def trits(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    error += x
    most = error.abs().max()
    digits = torch.where(error.abs() >= most / 2, error.sign(), 0.0)
    error -= digits * most
    weights = torch.tensor([81, 27, 9, 3, 1], dtype=torch.uint8, device=x.device)
    padded = torch.nn.functional.pad(digits.to(torch.uint8) + 1, (0, -x.numel() % 5))
    return (padded.view(-1, 5) * weights).sum(dim=1, dtype=torch.uint8), most


def columns(x: Tensor, error: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    error += x
    matrix = error.view(-1, columns)
    high = matrix >= 0
    counts = high.sum(dim=0)
    above = (matrix * high).sum(dim=0) / counts.clamp(min=1)
    below = (matrix * ~high).sum(dim=0) / (len(matrix) - counts).clamp(min=1)
    matrix -= torch.where(high, above, below)
    return pack_bits(high.view(-1)), torch.stack([below, above])


def natural(x: Tensor) -> Tensor:
    """Nine bits each, in two bytes: nobody packs them without gaps in eager torch."""
    pattern = x.view(torch.int32)
    exponent, mantissa = (pattern >> 23) & 0xFF, pattern & 0x7FFFFF
    raised = torch.randint_like(mantissa, 1 << 23) < mantissa
    return ((exponent + raised) | ((pattern < 0).int() << 8)).to(torch.int16)


def sampled(x: Tensor, error: Tensor, k: int) -> tuple[Tensor, Tensor]:
    error += x
    looked = error[torch.randint(x.numel(), (x.numel() // 1000,), device=x.device)].abs()
    limit = looked.topk(looked.numel() * k // x.numel(), sorted=False).values.min()
    places = torch.nonzero(error.abs() >= limit).view(-1)
    values = error[places]
    error[places] = 0
    return places, values


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    places = x.abs().topk(k, sorted=False).indices
    return places, x[places]


def mean_of_sparse(places: list[Tensor], values: list[Tensor], n: int) -> Tensor:
    total = torch.zeros(n, device=values[0].device)
    for where, sent in zip(places, values, strict=True):
        total.index_add_(0, where, sent)
    return total / len(values)


def vote(rows: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=rows.device)
    ones = torch.zeros(8 * rows.shape[1], dtype=torch.int32, device=rows.device)
    for row in rows:
        ones += ((row[:, None] >> places) & 1).view(-1)
    return pack_bits(2 * ones >= len(rows))


def power(matrix: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    p, _ = torch.linalg.qr(matrix @ q)
    return p, matrix.T @ p


def rotate(x: Tensor) -> Tensor:
    x, width = x * (torch.randint(2, (x.numel(),), device=x.device) * 2.0 - 1), 1
    while width < x.numel():
        pairs = x.view(-1, 2, width)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(-1)
        width *= 2
    return x * x.numel() ** -0.5
