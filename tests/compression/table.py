"""Inputs of many kinds, and compressors by their text, for tests that exchange tensors in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from laconic.compression.base import Compressor
from laconic.strategy import Sentence, Strategy
from laconic.testing.in_memory import answer_requests, meet, spec_of
from laconic.testing.inputs import drawn

__all__ = ["KINDS", "answer_requests", "compressor", "meet", "spec_of", "tensor"]

KINDS = ["normal", "heavy", "sparse", "constant", "zero", "single", "long"]


def compressor(text: str) -> Compressor:
    """Return the compressor of a chain's text."""
    sentence = Strategy.parse(text)
    assert isinstance(sentence, Sentence)
    made: Compressor = sentence.compressor
    return made


def tensor(kind: str, shape: tuple[int, ...] = (24, 20), seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return an input of some kind; `single` and `long` have shapes of their own."""
    return drawn(kind, {"single": (1,), "long": (120, 101)}.get(kind, shape), seed, dtype)


class OfShapes(nn.Module):
    """A parameter of every shape, each with a dense gradient of its own."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tensors = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self, seed: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        return torch.stack([((p - torch.randn(p.shape, generator=draw)) ** 2).sum() for p in self.tensors]).sum()
