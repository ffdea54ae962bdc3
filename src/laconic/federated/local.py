"""What a client does with the model it has received: some steps of gradient descent on its own samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from laconic.federated.layout import Layout
from laconic.federated.partition import Integers
from laconic.federated.recorded import Recorded
from laconic.federated.task import Task

Correct = Callable[[Tensor, Tensor], Tensor]
"""Returns the direction to descend in, from the gradient and the parameters at which it was taken."""


def held_near(start: Tensor, mu: float) -> Correct:
    """Return what adds to a gradient that of μ/2 ‖w − w_t‖², where w_t are the parameters at the start."""
    return lambda gradient, at: gradient.add(at - start, alpha=mu)


@dataclass(frozen=True)
class Work:
    """How much a client trains.

    - `epochs`: how often it goes through its samples, in an order that is drawn anew.
    - `batch`: the number of samples of a step; 0 for all of them.
    - `rate`: the learning rate.
    - `momentum`: what share of the last direction is added to the next.
    - `steps`: the number of steps, in place of epochs.
    - `drawn`: how many of its samples, drawn at random, it trains on; all of them, if that is not given.
    """

    epochs: int
    batch: int
    rate: float
    momentum: float = 0.0
    steps: int | None = None
    drawn: int | None = None

    def samples_used(self, held: int) -> int:
        """Return how many samples are used, each counted as often as it is, of so many that are held."""
        held = held if self.drawn is None else min(held, self.drawn)
        if self.steps is None:
            return self.epochs * held
        size = self.batch or held
        whole, rest = divmod(self.steps, -(-held // size))
        return whole * held + min(rest * size, held)

    def steps_made(self, held: int) -> int:
        """Return how many steps are made, with so many samples held."""
        if self.steps is not None:
            return self.steps
        held = held if self.drawn is None else min(held, self.drawn)
        return self.epochs * -(-held // (self.batch or held))

    def batches(self, samples: Integers, draw: np.random.Generator) -> Iterator[Integers]:
        """Return the samples of each step."""
        steps = self.steps_made(len(samples))
        if self.drawn is not None and self.drawn < len(samples):
            samples = draw.choice(samples, self.drawn, replace=False)
        size = self.batch or len(samples)
        while steps > 0:
            shuffled = draw.permutation(samples)
            for start in range(0, min(len(shuffled), steps * size), size):
                yield shuffled[start : start + size]
            steps -= -(-len(samples) // size)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a client's steps have led, how many they were, and the mean loss that it saw."""

    end: Tensor
    steps: int
    loss: float


class Trainer:
    """A model whose parameters lie in one vector, on which one client after another trains.

    Clients train on the device on which the task builds its model: vectors of `train`, `descend` and `gradient` lie
    there. With `recorded` the gradient of a batch is recorded as a CUDA graph.
    """

    def __init__(self, task: Task, seed: int, recorded: bool = False) -> None:
        self.task, self.model = task, task.build(seed)
        self.layout = Layout.of(self.model)
        self.start = self.layout.join(list(self.model.parameters()))
        self.device = self.start.device
        self._compute = Recorded(self._computed) if recorded else self._computed
        self._vector = self.start.clone()
        self._parameters = list(self.model.parameters())
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self.layout.split(self._vector), strict=True):
                parameter.data = view

    def gradient(self, at: Tensor, samples: Integers) -> tuple[Tensor, float]:
        """Return the gradient and the mean loss over these samples at these parameters."""
        self._vector.copy_(at)
        gradient, loss = self._gradient(torch.from_numpy(samples).to(self.device))
        return gradient, float(loss)

    def evaluate(self, at: Tensor) -> dict[str, float]:
        """Return what the task says of these parameters."""
        self._vector.copy_(at)
        self.model.eval()
        found = self.task.evaluate(self.model)
        self.model.train()
        return found

    def descend(
        self,
        start: Tensor,
        batches: Iterator[Integers],
        work: Work,
        correct: Correct | None = None,
        settle: Callable[[Tensor], None] | None = None,
    ) -> Descent:
        """Descend from these parameters, a step for each batch.

        - `correct`: changes the gradient before each step.
        - `settle`: changes the parameters in place after each step.
        """
        vector, losses = self._vector, list[Tensor]()
        vector.copy_(start)
        direction = torch.zeros_like(vector) if work.momentum else None
        for samples in self._on_device(batches):
            gradient, loss = self._gradient(samples)
            gradient = gradient if correct is None else correct(gradient, vector)
            if direction is not None:
                gradient = direction.mul_(work.momentum).add_(gradient)
            vector.sub_(gradient, alpha=work.rate)
            if settle is not None:
                settle(vector)
            losses.append(loss)  # it is read at the end: asking a device for a value waits for all before it
        total = 0.0
        for value in torch.stack(losses).tolist() if losses else ():
            total += value
        return Descent(vector.clone(), len(losses), total / max(1, len(losses)))

    def _on_device(self, batches: Iterator[Integers]) -> Iterable[Tensor]:
        """Return the batches on the device, to which they are copied at once."""
        if self.device.type == "cpu":
            return map(torch.from_numpy, batches)
        numbers = list(batches)
        if not numbers:
            return ()
        return torch.split(torch.from_numpy(np.concatenate(numbers)).to(self.device), [len(each) for each in numbers])

    def _gradient(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient over these samples at the vector's parameters, and the mean loss."""
        return self._compute(samples)

    def _computed(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            loss = self.task.loss(self.model, samples)
            parts = torch.autograd.grad(loss, self._parameters)
        return torch.cat([part.reshape(-1) for part in parts]), loss.detach().reshape(())


@dataclass(frozen=True, eq=False)
class Local:
    """One client at work in one round, as its rule sees it; `version` is that of the model it was sent."""

    trainer: Trainer
    client: int
    samples: Integers
    work: Work
    draw: np.random.Generator
    version: int = 0

    def descend(
        self, start: Tensor, correct: Correct | None = None, settle: Callable[[Tensor], None] | None = None
    ) -> Descent:
        """Do the client's work from these parameters."""
        return self.trainer.descend(start, self.work.batches(self.samples, self.draw), self.work, correct, settle)

    def gradient(self, at: Tensor) -> Tensor:
        """Return the gradient over all samples of the client."""
        return self.trainer.gradient(at, self.samples)[0]
