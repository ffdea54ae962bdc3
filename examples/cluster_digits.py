"""Handwritten digits as a job of a Ray cluster: it may be stopped after any step, moved, and go on with other workers.

    laconic cluster run examples/cluster_jobs.toml --policy srtf --hosts 2 --gpus 2 --folder /tmp/digits

A step takes the same 64 images however many workers share them, so that a move changes nothing but who computes.
"""

from __future__ import annotations

from laconic.cluster.ray.torch_work import TorchWork
from laconic.cluster.ray.work import Seat


class Digits(TorchWork):
    """Its work is counted in steps."""

    def __init__(self, strategy: str = "bsp", batch: int = 64, seed: int = 0) -> None:
        self.strategy, self.batch, self.seed = strategy, batch, seed

    def prepare(self) -> None:
        import torch
        from sklearn.datasets import load_digits

        import laconic

        assert laconic.distribute  # loads what it needs
        torch.manual_seed(self.seed)
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
        self.labels = torch.tensor(digits.target)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def begin(self, seat: Seat) -> float:
        import laconic

        seat.enter()
        self.seat = seat
        self.model, self.optimizer = laconic.distribute(self.model, self.optimizer, self.strategy)
        self.steps = int(laconic.resume(seat.folder, self.model, self.optimizer).get("steps", 0))
        return self.steps

    def step(self) -> float:
        import torch

        draw = torch.Generator().manual_seed(self.seed + self.steps)
        chosen = torch.randperm(len(self.labels), generator=draw)[: self.batch][self.seat.rank :: self.seat.size]
        loss = torch.nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return self.steps

    def save(self) -> None:
        import laconic

        laconic.checkpoint(self.seat.folder, self.model, self.optimizer, steps=self.steps)
