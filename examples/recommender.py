"""A recommender with large embeddings of which a batch touches few rows, trained by any number of workers.

    python examples/recommender.py                                               # one worker
    laconic run --workers 4 --strategy "bsp / none / allreduce" examples/recommender.py --steps 500

It is a plain PyTorch script in which two lines have changed; the comments "changed" mark them. Gradients of embeddings
are sparse, and only rows that were used travel; strategies that take whole parameters need `--dense`. Interactions are
drawn from a world that is known: some users and items are met often, most hardly ever (Zipf), and who clicks on what
follows from factors that the model can find, and from chance. So there is a loss that no model can beat, and the script
prints it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic

GROUPS, CATEGORIES, CONTEXT, FACTORS = 48, 100, 4, 8
"""Groups of users, categories of items, numbers that describe a visit, and hidden factors of a user and of an item."""
DRAWS = 3 + CONTEXT
"""Random numbers that make an interaction: who, what, whether there is a click, and the visit."""
HELD_OUT = (0, 0, 0, 1)
"""The place of interactions to validate with, which is no (seed, step, worker)."""
EXPONENT = 1.05  # of Zipf's law: the user or item number k is met in proportion to k to the power of minus this


@dataclass(frozen=True)
class World:
    """Who meets what, and who clicks: a user's group is his number modulo 48, an item's category modulo 100."""

    users: int
    items: int
    device: torch.device

    @cached_property
    def truth(self) -> dict[str, Tensor]:
        """What decides on clicks, the same in every run."""
        draw = np.random.default_rng(0)
        shapes = {
            "user": (self.users, FACTORS),
            "item": (self.items, FACTORS),
            "pair": (GROUPS, CATEGORIES),
            "visit": (CONTEXT,),
        }
        return {k: torch.tensor(draw.normal(size=v), dtype=torch.float32).to(self.device) for k, v in shapes.items()}

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """The probabilities, summed up, of meeting the users and the items up to each one."""
        sums = [(torch.arange(1, n + 1, dtype=torch.float64) ** -EXPONENT).cumsum(0) for n in (self.users, self.items)]
        users, items = ((each / each[-1]).to(self.device) for each in sums)
        return users, items

    def interactions(self, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what so many columns of uniform random numbers make: (user, item, group, category) and the numbers of
        the visit for each, and whether there was a click."""
        return self.interactions_of(*self.met_by(draws), draws)

    def met_by(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return who is met, and what."""
        users, items = self.sums
        return torch.searchsorted(users, draws[0], right=True), torch.searchsorted(items, draws[1], right=True)

    def interactions_of(self, users: Tensor, items: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what happens when these users meet these items."""
        ids = torch.stack([users, items, users % GROUPS, items % CATEGORIES], dim=1)
        visit = (12**0.5 * (draws[3:] - 0.5)).T.float()
        return ids, visit, (draws[2] < self.logits(ids, visit).sigmoid()).float()

    def logits(self, ids: Tensor, visit: Tensor) -> Tensor:
        """Return the logarithms of the odds of a click, as they are."""
        truth, (user, item, group, category) = self.truth, ids.T
        taste = (truth["user"][user] * truth["item"][item]).sum(1) / FACTORS**0.5
        return 1.5 * taste + truth["pair"][group, category] + 0.5 * visit @ truth["visit"] - 1


class Recommender(nn.Module):
    """A row for each user, item, group and category; products of those that belong together, and three layers."""

    def __init__(self, rows: Sequence[int], width: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width, sparse=sparse) for count in rows)
        self.layers = nn.Sequential(
            nn.Linear(6 * width + CONTEXT, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, ids: Tensor, visit: Tensor) -> Tensor:
        user, item, group, category = (table(ids[:, k]) for k, table in enumerate(self.tables))
        seen = torch.cat([user, item, group, category, user * item, group * category, visit], dim=1)
        return self.layers(seen)[:, 0]


def build_model(seed: int, users: int, items: int, width: int = 16, sparse: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return Recommender((users, items, GROUPS, CATEGORIES), width, sparse)


def draw_batch(world: World, batch: int, place: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return interactions that nobody has seen before; `place` is (seed, step, worker)."""
    return world.interactions(torch.tensor(np.random.default_rng(place).random((DRAWS, batch)), device=world.device))


def area_under_curve(scores: Tensor, clicks: Tensor) -> float:
    """The probability that a click has a higher score than no click; equal scores count half."""
    _, place, equal = scores.unique(return_inverse=True, return_counts=True)
    ranks = equal.cumsum(0) - (equal - 1) / 2
    clicked = clicks.sum().double()
    above = ranks.double()[place[clicks > 0]].sum() - clicked * (clicked + 1) / 2
    return (above / (clicked * (len(clicks) - clicked))).item()


@torch.no_grad()
def validate(model: nn.Module, ids: Tensor, visit: Tensor, clicks: Tensor) -> tuple[float, float]:
    """Loss in nats an interaction, and the area under the curve."""
    scores = model(ids, visit)
    return functional.binary_cross_entropy_with_logits(scores, clicks).item(), area_under_curve(scores, clicks)


def main(arguments: Sequence[str] | None = None) -> nn.Module:
    args = parse(arguments)
    torch.sparse.check_sparse_tensor_invariants.disable()  # said aloud, since torch warns otherwise
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = World(args.users, args.items, device)
    held_out = draw_batch(world, args.validate, HELD_OUT)
    model = build_model(args.seed, args.users, args.items, sparse=not args.dense).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    model, optimizer = laconic.distribute(model, optimizer)  # changed (1 of 2): the workers train together

    if laconic.rank() == 0:
        ids, visit, clicks = held_out
        least = functional.binary_cross_entropy_with_logits(world.logits(ids, visit), clicks).item()
        print(f"no model can do better than a validation loss of {least:.4f}", flush=True)
    done = laconic.resume(args.checkpoint, model, optimizer).get("step", 0) if args.checkpoint else 0
    for step in range(done, args.steps):
        place = (args.seed, step, laconic.rank())  # changed (2 of 2): each worker draws its own batches
        ids, visit, clicks = draw_batch(world, args.batch, place)
        functional.binary_cross_entropy_with_logits(model(ids, visit), clicks).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % args.every and step + 1 < args.steps:
            continue
        if laconic.rank() == 0:  # the others hold the same model: once is enough
            nats, area = validate(model, *held_out)
            laconic.log(loss=nats, auc=area)
            print(f"step {step + 1}  validation loss {nats:.4f}  AUC {area:.4f}", flush=True)
        if args.checkpoint:
            laconic.checkpoint(args.checkpoint, model, optimizer, step=step + 1)
    return model


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a recommender on interactions of users with items.")
    parser.add_argument("--users", type=int, default=24_000, help="rows of the first embedding (default 24000)")
    parser.add_argument("--items", type=int, default=10_000, help="rows of the second embedding (default 10000)")
    parser.add_argument("--steps", type=int, default=1000, help="steps in all (default 1000)")
    parser.add_argument("--batch", type=int, default=256, help="interactions per worker and step (default 256)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (default 0.05)")
    parser.add_argument("--dense", action="store_true", help="dense gradients, which every strategy takes")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the batches (default 0)")
    parser.add_argument("--every", type=int, default=250, help="validate and save after so many steps (default 250)")
    parser.add_argument("--validate", type=int, default=20_000, help="interactions held out (default 20000)")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save here, and resume from here")
    args = parser.parse_args(arguments)
    if min(args.users, args.items, args.batch, args.every, args.validate) < 1:
        parser.error("--users, --items, --batch, --every and --validate are counts: give 1 or more")
    return args


if __name__ == "__main__":
    main()
