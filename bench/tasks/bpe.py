"""The frozen text in byte pairs: what a larger vocabulary changes, in nats a byte, so that it compares with bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from bench.tasks.draws import below
from examples.chars import Shape
from examples.chars import build_model as transformer
from torch import Tensor, nn
from torch.nn import functional

SHAPE = Shape(depth=6, width=384, context=512)
ENCODED = Path(__file__).resolve().parents[2] / "runs" / "corpus.bpe.npz"


class Bpe:
    """A transformer on tokens of several bytes: the batch is of so many windows a worker. The loss of a step is in nats
    a token, as its gradient should be; what is held out is judged in nats a byte. Skewed shards are parts of the text
    one behind the other, and so of different packages.
    """

    name, kind = "bpe", "transformer"

    def __init__(
        self,
        device: torch.device | str = "cpu",
        batch: int = 8,
        workers: int = 8,
        skewed: bool = False,
        data: Path = ENCODED,
        shape: Shape = SHAPE,
    ) -> None:
        if not data.is_file():
            raise SystemExit(f"there is no text at {data}: run bench/corpus.py, and bench/byte_pairs.py on its result")
        self.device, self.windows, self.shape = torch.device(device), batch, shape
        self.samples = batch * shape.context
        with np.load(data, allow_pickle=False) as kept:
            lengths, training, validation = (
                kept[name].astype(np.int32) for name in ("lengths", "training", "validation")
            )
        self.lengths, self.training, self.validation = (
            torch.from_numpy(x).to(self.device) for x in (lengths, training, validation)
        )
        self.parts = [(0, len(self.training))] * workers
        if skewed:
            ends = [len(self.training) * k // workers for k in range(workers + 1)]
            self.parts = list(pairwise(ends))
        least = min([len(self.validation), *(end - begin for begin, end in self.parts)])
        if least <= shape.context:
            raise SystemExit(f"a part of {data} has {least:,} tokens, which do not fill a context of {shape.context}")

    def build(self, seed: int) -> nn.Module:
        return transformer(seed, len(self.lengths), self.shape)

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        begin, end = self.parts[worker]
        starts = begin + below(
            end - begin - self.shape.context, self.windows, self.device, self.name, seed, step, worker
        )
        windows = self.training[starts[:, None] + torch.arange(self.shape.context + 1, device=self.device)].long()
        return windows[:, :-1], windows[:, 1:]

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """Neighbouring windows over all that is held out, but for the tokens that do not fill the last."""
        count = (len(self.validation) - 1) // self.shape.context
        inputs, targets = (self.validation[k : k + count * self.shape.context].view(count, -1).long() for k in (0, 1))
        pairs = zip(inputs.split(32), targets.split(32), strict=True)
        nats = sum(self.loss(model, x, y).item() * y.numel() for x, y in pairs)
        return {"loss": nats / self.lengths[targets].sum().item(), "nats_per_token": nats / targets.numel()}
