"""Attention block by block: a softmax that goes on as further keys come, and its gradient from what it ended with.

Queries have the shape (batch, heads of keys, queries' heads for each of them, tokens, width), keys and values (batch,
heads, 1, tokens, width): several heads of queries may share one of keys. The scores of a block are held at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.parallel.context.parts import Block


class RunningSoftmax:
    """The softmax-weighted sum of values over all keys so far, with the largest score and the sum of exponentials of
    each query (Milakov and Gimelshein, 2018)."""

    def __init__(self, queries: Tensor, value_width: int, scale: float) -> None:
        self._queries, self._scale = queries, scale
        shape = queries.shape[:-1]
        self._largest = queries.new_full((*shape, 1), -torch.inf, dtype=_sums(queries))
        self._sum = torch.zeros_like(self._largest)
        self._mixed = self._largest.new_zeros(*shape, value_width)

    def add(self, keys: Tensor, values: Tensor, block: Block) -> None:
        """Take further keys into account for the queries of a block."""
        rows, columns = block.queries, block.keys
        scores = _scores(self._queries, keys, block, self._scale)
        before = self._largest[..., rows, :]
        largest = torch.maximum(before, scores.amax(-1, keepdim=True))
        weights, faded = (scores - largest).exp(), (before - largest).exp()
        self._largest[..., rows, :] = largest
        self._sum[..., rows, :] = self._sum[..., rows, :] * faded + weights.sum(-1, keepdim=True)
        added = weights @ values[..., columns, :].to(weights.dtype)
        self._mixed[..., rows, :] = self._mixed[..., rows, :] * faded + added

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the logarithm of each query's sum of exponentials."""
        return (self._mixed / self._sum).to(self._queries.dtype), self._largest + self._sum.log()


class BlockGradients:
    """The gradients of attention, block by block, from the logarithms that the forward pass ended with."""

    def __init__(self, queries: Tensor, outputs: Tensor, logarithms: Tensor, gradient: Tensor, scale: float) -> None:
        self._queries, self._logarithms, self._scale = queries, logarithms, scale
        self._gradient = gradient.to(logarithms.dtype)
        self._shift = (self._gradient * outputs).sum(-1, keepdim=True)
        self.queries = torch.zeros_like(queries, dtype=logarithms.dtype)

    def add(self, keys: Tensor, values: Tensor, block: Block, into_keys: Tensor, into_values: Tensor) -> None:
        """Add the gradients that a block contributes: of its queries here, of its keys and values to the tensors."""
        rows, columns, dtype = block.queries, block.keys, self._logarithms.dtype
        weights = (_scores(self._queries, keys, block, self._scale) - self._logarithms[..., rows, :]).exp()
        gradient = self._gradient[..., rows, :]
        of_weights = gradient @ values[..., columns, :].to(dtype).mT
        of_scores = weights * (of_weights - self._shift[..., rows, :]) * self._scale
        self.queries[..., rows, :] += of_scores @ keys[..., columns, :].to(dtype)
        into_keys[..., columns, :] += (of_scores.mT @ self._queries[..., rows, :].to(dtype)).sum(2, keepdim=True)
        into_values[..., columns, :] += (weights.mT @ gradient).sum(2, keepdim=True)


def _scores(queries: Tensor, keys: Tensor, block: Block, scale: float) -> Tensor:
    scores = (queries[..., block.queries, :] @ keys[..., block.keys, :].mT).to(_sums(queries)) * scale
    if block.triangular:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(later, -torch.inf)
    return scores


def _sums(x: Tensor) -> torch.dtype:
    """Return the format in which sums are made: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
