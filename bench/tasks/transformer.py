"""A causal transformer, in the sizes of the ladder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The size of a transformer; the feed-forward layers are four times as wide as it is."""

    layers: int
    width: int
    context: int
    vocabulary: int = 256

    @property
    def heads(self) -> int:
        return self.width // 64


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalisation and added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_attention, self.norm_forward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.movedim(-3, 0).transpose(-2, -3).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(-2, -3).flatten(-2))
        inner = functional.gelu(self.widen(self.norm_forward(x)))
        return x + self.narrow(inner)


class Transformer(nn.Module):
    """A causal transformer with learned positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.zeros(shape.context, shape.width))
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.RMSNorm(shape.width)
        self.scores = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                into_residual = name.endswith(("project.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if into_residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.norm(self.blocks(self.tokens(tokens) + self.positions)))
        return scores
