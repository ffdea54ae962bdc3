"""Federated unlearning by rapid retraining: quasi-Newton steps on the samples that remain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from laconic.federated.client_memory import Memory
from laconic.federated.layout import Vectors
from laconic.federated.local import Local
from laconic.federated.rule import Rule, Sent
from laconic.registry import knob, technique


def block_means(vector: Tensor, block: int) -> Tensor:
    """Return a vector in which every entry is the mean of its block of neighbours; the last may be shorter."""
    sums = functional.pad(vector, (0, -len(vector) % block)).view(-1, block).sum(1)
    counts = torch.full_like(sums, block)
    counts[-1] = block - (-len(vector) % block)
    return (sums / counts).repeat_interleave(block)[: len(vector)]


@technique(
    "fl_unlearning",
    aliases=["rapid_retraining", "federated_unlearning"],
    paper="Liu, Xu, Yuan, Wang, Li, IEEE INFOCOM 2022",
)
@dataclass(frozen=True)
class RapidRetraining(Rule):
    """Forget samples by training anew without them, in fewer rounds: clients step by a momentum of their gradients over
    a momentum of the Fisher information's diagonal.

    Simulate it on `Population(shards.without(deleted))`: no client has the deleted samples any more, and nothing that
    was learned from them is used. With g the gradient of a batch, F is the mean of g² over blocks of `block`
    neighbouring entries, m the moving average of g, v the root of that of F² (both without the bias of their start);
    a step is η·m/(v + ε). Moving averages stay with the client between rounds. The server averages as `fedavg`.

    Readings chosen: the model begins anew; F is of the batch's mean gradient, as sums over single samples would cost a
    pass for each; `epsilon` is as large as v often is, since without it the smallest gradients make the largest steps.
    On digits, ten clients with a step of all their samples a round reach the accuracy that SGD has after 100 rounds
    (each with the better of two rates) in 35 rounds where SGD takes 76, on average over eight seeds; of single seeds it
    is 1.7 to 3.0 times fewer. They end 1.2 points higher.
    """

    decay: float = knob(0.9, low=0, below=1, doc="share of the moving average of gradients that a step keeps")
    fisher_decay: float = knob(0.999, low=0, below=1, doc="the same for the squared Fisher information")
    block: int = knob(3, low=1, doc="neighbouring entries that share their Fisher information")
    epsilon: float = knob(1e-4, above=0, doc="what is added to the Fisher information that a step is divided by")

    def train(self, local: Local, received: Vectors, memory: Memory) -> Sent:
        start = received["parameters"]
        zeros = torch.zeros_like(start)
        mean, squares = memory.get("mean", zeros.clone()), memory.get("squares", zeros.clone())
        steps = int(memory.get("steps", torch.tensor(0)))

        def direction(gradient: Tensor, at: Tensor) -> Tensor:
            nonlocal steps
            steps += 1
            fisher = block_means(gradient.square(), self.block)
            mean.lerp_(gradient, 1 - self.decay)
            squares.lerp_(fisher.square(), 1 - self.fisher_decay)
            curvature = (squares / (1 - self.fisher_decay**steps)).sqrt()
            return mean / (1 - self.decay**steps) / (curvature + self.epsilon)

        change = local.descend(start, direction).end - start
        memory |= {"mean": mean, "squares": squares, "steps": torch.tensor(steps)}
        return Sent({"change": change})
