"""Workers in this process that fail at calls which a seed decides, and a small model that they train.

The model has 64-bit parameters: after hundreds of steps a sum in another order still is as good as none, and a sample
that is lost or counted twice is not.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from laconic.errors import WorkerLost
from laconic.parallel.elastic.layer_holder import LayerHolder, Model, fresh_states
from laconic.worker import ActorMessage

WIDTH, LAYERS = 6, 6


def layers() -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS - 1)]
        return [layer.double() for layer in (*hidden, nn.Linear(WIDTH, 3))]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


MODEL = Model(layers, loss, learning_rate=0.05, momentum=0.5)


def batch(step: int, samples: int = 23) -> tuple[Tensor, Tensor]:
    """The samples of a step, which depend on its number alone and can be learnt."""
    draw = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(samples, WIDTH, generator=draw, dtype=torch.float64)
    return inputs, inputs[:, :3].argmax(1)


def microbatches(step: int, count: int, samples: int = 23) -> list[tuple[Tensor, Tensor]]:
    """A batch cut into as many parts, of unequal sizes."""
    inputs, targets = batch(step, samples)
    return list(zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True))


def undisturbed(steps: int) -> tuple[list[Tensor], list[float]]:
    """The parameters and losses of one process that trains on whole batches with torch's own SGD."""
    model = nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=MODEL.learning_rate, momentum=MODEL.momentum)
    losses = []
    for step in range(steps):
        inputs, targets = batch(step)
        mean = loss(model(inputs), targets) / len(inputs)
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        losses.append(float(mean.detach()))
    return [p.detach() for p in model.parameters()], losses


class VirtualNodes:
    """Nodes by number, each a layer holder. Every so many calls the node that is called fails: before it has carried
    out the call, after it, or it lives on, can be reached later, and only its answer is lost."""

    def __init__(self, every: int, seed: int) -> None:
        self.holders: dict[int, LayerHolder] = {}
        self.failures = 0
        self._every, self._draw, self._calls = every, random.Random(seed), 0

    def start(self, number: int) -> int:
        self.holders[number] = LayerHolder(MODEL)
        return number

    def send(self, node: int, message: ActorMessage, writes: bool) -> ActorMessage:
        if node not in self.holders:
            raise WorkerLost("it is gone")
        self._calls += 1
        due = self._every > 0 and self._calls % self._every == 0
        way = self._draw.choice(["before", "after", "answer"]) if due else ""
        self.failures += due
        holder = self.holders[node]
        if way == "before":
            del self.holders[node]
            raise WorkerLost("it was killed")
        answer = holder.write(0, message) if writes else holder.read(0, message)
        assert answer is not None
        if way == "after":
            del self.holders[node]
        if way:
            raise WorkerLost("no answer came")
        return answer

    def parameters(self, holder_of: dict[int, int]) -> list[Tensor]:
        """The parameters of all layers, each from the node that holds it."""
        found: list[Tensor] = []
        for layer in range(LAYERS):
            answer = self.holders[holder_of[layer]].read(0, ActorMessage("give", {"layer": layer}))
            assert answer is not None
            found += answer.tensors[: len(answer.tensors) // 2]
        return found


def states() -> list[ActorMessage]:
    return fresh_states(MODEL)
