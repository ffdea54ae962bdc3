"""CIFAR-10 with ResNet-20 and group normalisation: the model, the crops and the mirror images of the example."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from bench.tasks.draws import words
from examples.cifar import MARGIN, build_model, crops, default_images, load_images, normalised
from torch import Tensor, nn
from torch.nn import functional

from laconic.files import make_folder, replacing

RUNS = Path(__file__).resolve().parents[2] / "runs"
CONCENTRATION = 0.3
"""Of the Dirichlet distribution that the shares of labels on a worker are drawn from, where shards differ."""


class Cifar:
    """Residual network on images: the batch is of so many images a worker, on a device that holds all of them."""

    name, kind, data = "cifar", "convolutional", ""

    def __init__(
        self,
        device: torch.device | str = "cpu",
        batch: int = 32,
        workers: int = 8,
        skewed: bool = False,
        data: Path | None = None,
        blocks: int = 3,
    ) -> None:
        self.samples, self.device, self.blocks = batch, torch.device(device), blocks
        images = decoded(data or default_images())
        self.images, self.labels, self.test_images, self.test_labels = (x.to(self.device) for x in images)
        self.size = len(self.images)
        everything = torch.arange(len(self.images), device=self.device)
        self.shards = [everything] * workers
        if skewed:
            self.shards = [part.to(self.device) for part in shards_by_label(images[1].numpy(), workers)]

    def build(self, seed: int) -> nn.Module:
        return build_model(seed, self.blocks)

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        which, how = words(2 * self.samples, self.device, self.name, seed, step, worker).view(2, -1)
        shard, offsets = self.shards[worker], 2 * MARGIN + 1
        chosen = shard[which % len(shard)]
        moved = crops(self.images[chosen], how % offsets, how // offsets % offsets, how // offsets**2 % 2 == 1)
        return normalised(moved), self.labels[chosen]

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images).float(), labels)

    @torch.no_grad()
    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        scores = torch.cat([model(normalised(part)).float() for part in self.test_images.split(1000)])
        right = (scores.argmax(1) == self.test_labels).float().mean()
        return {"loss": functional.cross_entropy(scores, self.test_labels).item(), "accuracy": right.item()}


def decoded(path: Path) -> Sequence[Tensor]:
    """Return the images and labels to train with, then those to test with. Decoding takes most of a minute, so that its
    result is kept in `runs/`."""
    if not path.is_file():
        raise SystemExit(f"there are no images at {path}: set LACONIC_DATA to the folder that has cifar10/jpeg.npz")
    kept = make_folder(RUNS) / f"cifar10-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.npz"
    if not kept.is_file():
        parts = [part.numpy() for part in load_images(path, most=1 << 62)]
        with replacing(kept) as beside, beside.open("wb") as file:
            np.savez(file, *parts)
    with np.load(kept, allow_pickle=False) as found:
        return [torch.from_numpy(found[name]) for name in found.files]


def shards_by_label(labels: np.ndarray, workers: int) -> list[Tensor]:
    """Split images into shards of equal size whose shares of labels are drawn from a Dirichlet distribution (Hsu et
    al., 2019). Each image but a remainder is in one shard, so that all workers together see what they saw before; a
    worker goes on with other labels when one is used up, and the last takes what is left."""
    draw = np.random.default_rng(0)
    piles = [list(draw.permutation(np.flatnonzero(labels == label))) for label in np.unique(labels)]
    shards = []
    for _ in range(workers):
        share, shard = draw.dirichlet([CONCENTRATION] * len(piles)), list[int]()
        while (missing := len(labels) // workers - len(shard)) > 0:
            there = np.array([len(pile) for pile in piles])
            left = np.where(there > 0, share + 1e-9, 0)
            for pile, count in zip(piles, draw.multinomial(missing, left / left.sum()), strict=True):
                shard += [pile.pop() for _ in range(min(count, len(pile)))]
        shards.append(torch.tensor(np.array(shard)))
    return shards
