"""A language model of bytes: a transformer on the frozen corpus of Python sources (`bench/corpus.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
HELD_OUT = 2**20
"""The bytes of the validation text on which a model is evaluated, in windows spread over all of it."""


@dataclass(frozen=True)
class Shape:
    """The size of a transformer; the feed-forward layers are four times as wide as it is."""

    layers: int
    width: int
    context: int
    vocabulary: int = VOCABULARY

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


class Bytes:
    """The task: predict each byte of a window from those before it.

    The windows of the training text do not overlap, and each epoch takes all of them in an order of its seed, so that
    a text is seen as often as a run has epochs. With `skewed`, worker w draws from the w-th part of the text alone:
    other packages than the others.
    """

    name, kind = "bytes", "transformer"

    def __init__(
        self, training: Tensor, validation: Tensor, shape: Shape, rows: int, workers: int, skewed: bool = False
    ) -> None:
        self.shape, self.rows, self.workers, self.skewed = shape, rows, workers, skewed
        self.samples = rows * shape.context
        self.device = training.device
        self._training, length = training, shape.context + 1
        self._windows = (len(training) - 1) // shape.context
        self._inside = torch.arange(length, device=self.device)
        spread = torch.linspace(0, (len(validation) - 1) // shape.context - 1, HELD_OUT // shape.context)
        held_out = validation[(spread.long().unique()[:, None] * shape.context).to(self.device) + self._inside].long()
        self._x, self._y = held_out[:, :-1], held_out[:, 1:]
        torch.backends.cuda.enable_cudnn_sdp(False)  # wrong under vmap in torch 2.11: losses that are not numbers
        self._orders: dict[tuple[int, int], Tensor] = {}

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Transformer(self.shape)

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        if self.skewed:
            own = self._windows // self.workers
            epoch, first = divmod(step * self.rows, own // self.rows * self.rows)
            places = self._order(seed, epoch, own)[first : first + self.rows] + worker * own
        else:
            whole = self._windows // (self.rows * self.workers) * self.rows * self.workers
            epoch, first = divmod((step * self.workers + worker) * self.rows, whole)
            places = self._order(seed, epoch, self._windows)[first : first + self.rows]
        text = self._training[places[:, None] * self.shape.context + self._inside].long()
        return text[:, :-1], text[:, 1:]

    def _order(self, seed: int, epoch: int, count: int) -> Tensor:
        if (seed, epoch) not in self._orders:
            draw = torch.Generator().manual_seed(1000 * seed + epoch)
            self._orders = {(seed, epoch): torch.randperm(count, generator=draw).to(self.device)}
        return self._orders[seed, epoch]

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        x, y = batch
        cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            scores = model(x)
        return functional.cross_entropy(scores.float().flatten(0, -2), y.flatten())

    @torch.no_grad()
    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """Return the mean loss of the held-out bytes, in nats."""
        parts = zip(self._x.split(128), self._y.split(128), strict=True)
        total = torch.stack([self.loss(model, x, y) * y.numel() for x, y in parts]).sum()
        return {"loss": total.item() / self._y.numel()}
