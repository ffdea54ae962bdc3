"""Inputs of many kinds, and compressors by their text, for tests that exchange tensors in memory."""

from __future__ import annotations

import torch
from torch import Tensor

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
