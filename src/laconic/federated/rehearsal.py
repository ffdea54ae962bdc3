"""A client's part in the first round as it would be without data: what a rule sends, before anybody trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from laconic.federated.layout import Layout, Vectors, moved
from laconic.federated.local import Local, Trainer
from laconic.federated.population import Population
from laconic.federated.rule import Sent, Server
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The first round without training.

    - `layout`: of the model.
    - `server`: before the round.
    - `received`: what clients are sent.
    - `sent`: what a client sends whose gradients are all zero.
    """

    layout: Layout
    server: Server
    received: Vectors
    sent: Sent


def rehearse(strategy: FederatedStrategy, task: Task, population: Population, rate: float, seed: int) -> Rehearsal:
    """Go through a client's part in the first round, with gradients that are all zero."""
    trainer, rule = _Still(task, seed), strategy.rule
    server = rule.begin(trainer.start.cpu(), population, strategy.setting(trainer.layout))
    client = int(np.flatnonzero(population.shards.sizes)[0])
    own = rule.down_to(server, client) if rule.personal else Sent(rule.share(server, client, rule.down(server)))
    received = {**own.vectors, **own.raw}
    work, draw = rule.work(server, client, population, rate), np.random.default_rng([seed, 0x91A4])
    local = Local(trainer, client, population.shards[client], work, draw)
    sent = rule.train(local, moved(received, trainer.device), {})
    return Rehearsal(trainer.layout, server, received, sent)


class _Still(Trainer):
    """A trainer that looks at no sample: every gradient is zero."""

    def _gradient(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.start), torch.zeros(())
