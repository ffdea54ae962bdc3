"""A recommender: the model and the world of the example, larger, with gradients that every strategy takes (dense)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from bench.tasks.draws import uniform
from examples.recommender import DRAWS, GROUPS, World, area_under_curve, build_model
from torch import Tensor, nn
from torch.nn import functional


class Recommender:
    """Embeddings of users and items that are met as Zipf's law says: the batch is of so many interactions a worker, and
    all are fresh. With skewed shards each worker meets the users of its own groups, whose tastes differ; taken together
    the workers meet users as often as before, but for neighbours in frequency.
    """

    name, kind, data, size = "recommender", "recommender", "", None

    def __init__(
        self,
        device: torch.device | str = "cpu",
        batch: int = 512,
        workers: int = 8,
        skewed: bool = False,
        users: int = 4000 * GROUPS,
        items: int = 200_000,
        held_out: int = 1 << 17,
    ) -> None:
        if skewed and (GROUPS % workers or users % GROUPS):
            raise SystemExit(
                f"{workers} workers cannot share {users:,} users in {GROUPS} groups equally: take a number of workers "
                f"that divides {GROUPS}, and a multiple of {GROUPS} users"
            )
        self.samples, self.workers, self.skewed, self.device = batch, workers, skewed, torch.device(device)
        self.world = World(users, items, self.device)
        self.held_out = self.world.interactions(self._uniform(held_out, "held out"))

    def _uniform(self, count: int, *place: object) -> Tensor:
        return uniform(DRAWS * count, self.world.device, self.name, *place).view(DRAWS, count)

    def build(self, seed: int) -> nn.Module:
        return build_model(seed, self.world.users, self.world.items, sparse=False)

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        draws = self._uniform(self.samples, seed, step, worker)
        if not self.skewed:
            return self.world.interactions(draws)
        users, items = self.world.met_by(draws)
        return self.world.interactions_of(users - users % self.workers + worker, items, draws)

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        ids, visit, clicks = batch
        return functional.binary_cross_entropy_with_logits(model(ids, visit).float(), clicks)

    @torch.no_grad()
    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        ids, visit, clicks = self.held_out
        pairs = zip(ids.split(1 << 14), visit.split(1 << 14), strict=True)
        scores = torch.cat([model(*pair).float() for pair in pairs])
        loss = functional.binary_cross_entropy_with_logits(scores, clicks).item()
        return {"loss": loss, "auc": area_under_curve(scores, clicks)}

    @property
    def least(self) -> float:
        """The loss of a model that knows the odds of every click: no model has less, but for chance."""
        ids, visit, clicks = self.held_out
        return functional.binary_cross_entropy_with_logits(self.world.logits(ids, visit), clicks).item()
