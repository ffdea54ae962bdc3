"""Language models on a text: what the tasks on bytes and on byte pairs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from bench.tasks.transformer import Shape, Transformer
from torch import Tensor, nn
from torch.nn import functional

HELD_OUT = 2**20
"""The tokens of the validation text on which a model is evaluated at most, in windows spread over all of it."""


@dataclass(frozen=True)
class Tokens:
    """A text as whole numbers on a device, with what is held out, and how many bytes each number stands for."""

    training: Tensor
    validation: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Length:
    """How long a text is: in tokens, and in the bytes that they stand for."""

    tokens: int
    bytes: int


class Text:
    """Predict each token of a window from those before it; the batch is of so many windows a worker.

    Windows of the training text do not overlap, and each epoch takes all of them in an order of its seed, so that the
    text is seen as often as a run has epochs. With `skewed`, worker w has the w-th part of the text alone: other
    packages than the others. The loss of a step is in nats a token, as its gradient should be; what is held out is
    judged in nats a byte, so that vocabularies compare.
    """

    kind = "transformer"
    home: ClassVar[Path]
    """Where the text lies unless another file is given."""
    made_by: ClassVar[str]
    """The commands that make it."""
    usual: ClassVar[Shape]

    def __init__(
        self,
        device: torch.device | str = "cpu",
        batch: int = 8,
        workers: int = 8,
        skewed: bool = False,
        data: Path | None = None,
        shape: Shape | None = None,
    ) -> None:
        data, shape = self.checked(data), shape or self.usual
        tokens, self.data = self.read(data, torch.device(device)), self.digest(data)
        self.size = len(tokens.training)
        self.tokens, self.shape = tokens, replace(shape, vocabulary=len(tokens.lengths))
        self.windows, self.samples, self.device = batch, batch * shape.context, tokens.training.device
        self.own = (len(tokens.training) - 1) // shape.context // (workers if skewed else 1)
        self.skewed, self.workers = skewed, workers
        held_out = (len(tokens.validation) - 1) // shape.context
        at_once = batch if skewed else batch * workers
        if self.own < at_once or not held_out:
            raise SystemExit(
                f"the text has {self.own:,} windows of {shape.context} tokens to train on for each order of them, and "
                f"{held_out:,} to be judged by, where a step takes {at_once:,}: it is too short"
            )
        self._inside = torch.arange(shape.context + 1, device=self.device)
        spread = torch.linspace(0, held_out - 1, min(held_out, HELD_OUT // shape.context)).long().unique()
        self._judged = self._cut(tokens.validation, spread.to(self.device))
        self._orders: dict[tuple[int, int], Tensor] = {}
        torch.backends.cuda.enable_cudnn_sdp(False)  # wrong under vmap in torch 2.11: losses that are not numbers

    @classmethod
    def checked(cls, data: Path | None) -> Path:
        """Return the text's file, the usual one unless another is given; refused where it is not there."""
        data = data or cls.home
        if not data.is_file():
            raise SystemExit(f"there is no text at {data}: run {cls.made_by}")
        return data

    @staticmethod
    def digest(data: Path) -> str:
        """Return the beginning of a hash of the text in a file: packages differ from machine to machine."""
        raise NotImplementedError

    @staticmethod
    def length(data: Path) -> Length:
        """Return how long the training text in a file is."""
        raise NotImplementedError

    @staticmethod
    def read(data: Path, device: torch.device) -> Tokens:
        """Return the text of a file, on a device."""
        raise NotImplementedError

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Transformer(self.shape)

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        at_once = self.windows if self.skewed else self.windows * self.workers
        epoch, turn = divmod(step, self.own // at_once)
        first = turn * at_once + (0 if self.skewed else worker * self.windows)
        places = self._order(seed, epoch)[first : first + self.windows]
        return self._cut(self.tokens.training, places + (worker * self.own if self.skewed else 0))

    def _order(self, seed: int, epoch: int) -> Tensor:
        if (seed, epoch) not in self._orders:
            draw = torch.Generator().manual_seed(1000 * seed + epoch)
            self._orders = {(seed, epoch): torch.randperm(self.own, generator=draw).to(self.device)}
        return self._orders[seed, epoch]

    def _cut(self, text: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these windows, and what follows each of their tokens."""
        found = text[windows[:, None] * self.shape.context + self._inside].long()
        return found[:, :-1], found[:, 1:]

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        x, y = batch
        cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            scores = model(x)
        return functional.cross_entropy(scores.float().flatten(0, -2), y.flatten())

    @torch.no_grad()
    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        pairs = zip(*(part.split(128) for part in self._judged), strict=True)
        nats = torch.stack([self.loss(model, x, y).double() * y.numel() for x, y in pairs]).sum().item()
        targets = self._judged[1]
        read = int(self.tokens.lengths[targets].sum().item())
        return {"loss": nats / read, "nats_per_token": nats / targets.numel()}
