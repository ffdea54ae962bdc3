"""Attention of the whole sequence, and of a device's part: for virtual workers and for processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import scaled_dot_product_attention

from laconic.parallel.context.ring import ring_attention

BATCH, HEADS, WIDTH = 2, 4, 5


def inputs(length: int, key_heads: int = HEADS, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return queries, keys, values and the gradient of the outputs, of the whole sequence."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(HEADS, WIDTH), (key_heads, WIDTH), (key_heads, WIDTH + 2), (HEADS, WIDTH + 2)]
    return [torch.randn(BATCH, heads, length, width, generator=draw).to(dtype) for heads, width in shapes]


def whole(length: int, causal: bool, **options: Any) -> list[Tensor]:
    """Return outputs and gradients of queries, keys and values."""
    *leaves, gradient = inputs(length, **options)
    query, key, value = (x.requires_grad_() for x in leaves)
    outputs = scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    outputs.backward(gradient)
    return [outputs.detach(), *(x.grad for x in leaves if x.grad is not None)]


def cut(mesh: DeviceMesh, length: int, causal: bool, zigzag: bool, codes: Any = None, **options: Any) -> list[Tensor]:
    """Return a device's part of the same, and the positions of its tokens."""
    attend = ring_attention(mesh, length, causal=causal, zigzag=zigzag, **(codes or {}))
    *leaves, gradient = (attend.cut(x, 2) for x in inputs(length, **options))
    query, key, value = (x.requires_grad_() for x in leaves)
    outputs = attend(query, key, value)
    outputs.backward(gradient)
    return [attend.positions, outputs.detach(), *(x.grad for x in leaves if x.grad is not None)]


def furthest(found: list[list[Tensor]], expected: list[Tensor]) -> float:
    """Return how far what devices have together is from the whole."""
    order = torch.cat([own[0] for own in found])
    assert sorted(order.tolist()) == list(range(expected[0].shape[2]))
    return max(
        float((torch.cat([own[1 + k] for own in found], 2) - x[:, :, order]).abs().max())
        for k, x in enumerate(expected)
    )
