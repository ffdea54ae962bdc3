"""Clients of a round that train at once: one computation over their stacked models.

Clients that train one after another launch as many kernels each, and every one is too small for a GPU. Their steps of
gradient descent do not depend on each other, so that the first steps of all of them can be one `vmap`, and so on.
Rules need not know this: each client's part runs in a thread of its own, one thread at a time, and a thread that comes
to its descent waits there until all others have come to theirs or have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from laconic.errors import LaconicError
from laconic.federated.layout import Layout
from laconic.federated.local import Correct, Descent, Trainer, Work
from laconic.federated.partition import Integers
from laconic.federated.recorded import Recorded
from laconic.federated.task import Task

T = TypeVar("T")


class Judged(Protocol):
    """A task that says the loss of each sample, so that batches of unequal sizes can be one computation."""

    def losses(self, model: Callable[..., Tensor], samples: Tensor) -> Tensor:
        """Return the loss of a model on each of these samples, of which `loss` returns the mean."""
        ...


@dataclass(frozen=True, eq=False)
class Asked:
    """A descent that a client asks for."""

    start: Tensor
    batches: Sequence[Integers]
    work: Work
    correct: Correct | None
    settle: Callable[[Tensor], None] | None


class TogetherTrainer(Trainer):
    """A trainer of several clients at once.

    - `most`: how many models are stacked at most.
    - `recorded`: whether steps are recorded as CUDA graphs, one for each number of clients.
    """

    def __init__(self, task: Task, seed: int, most: int, recorded: bool = False) -> None:
        super().__init__(task, seed, recorded)
        if not hasattr(task, "losses"):
            raise LaconicError(
                f"clients train together only where the task says the loss of each sample: give {type(task).__name__} "
                "a method `losses(model, samples)`, or leave `together` out"
            )
        self._most = most
        self._rows = torch.empty(most, self.layout.numel, device=self.device)
        steps = Steps(task, self.model, self.layout, self._rows)
        self._steps = Recorded(steps, worth=3) if recorded else steps
        self._meeting: Meeting | None = None

    def at_once(self, parts: Sequence[Callable[[], T]]) -> list[T]:
        """Let clients do their parts, so many at once as are stacked at most."""
        found: list[T] = []
        for first in range(0, len(parts), self._most):
            self._meeting = Meeting(self._descend_all)
            try:
                found += self._meeting.run(parts[first : first + self._most])
            finally:
                self._meeting = None
        return found

    def descend(
        self,
        start: Tensor,
        batches: Iterator[Integers],
        work: Work,
        correct: Correct | None = None,
        settle: Callable[[Tensor], None] | None = None,
    ) -> Descent:
        asked = Asked(start, list(batches), work, correct, settle)
        return self._descend_all([asked])[0] if self._meeting is None else self._meeting.ask(asked)

    def _descend_all(self, asked: Sequence[Asked]) -> list[Descent]:
        """Make the steps of all, those with the most steps in the first rows, so that who still steps is a slice."""
        order = sorted(range(len(asked)), key=lambda i: -len(asked[i].batches))
        ordered = [asked[i] for i in order]
        rows = self._rows[: len(ordered)]
        torch.stack([one.start for one in ordered], out=rows)
        losses = self._stepped(rows, ordered)
        done: dict[int, Descent] = {}
        for place, (i, one) in enumerate(zip(order, ordered, strict=True)):
            own = losses[: len(one.batches), place].tolist()
            done[i] = Descent(rows[place].clone(), len(own), sum(own) / max(1, len(own)))
        return [done[i] for i in range(len(asked))]

    def _stepped(self, rows: Tensor, asked: Sequence[Asked]) -> Tensor:
        """Make all steps in place, and return the losses, by step and row."""
        samples, weights = (x.to(self.device) for x in padded([one.batches for one in asked]))
        rates = torch.tensor([[one.work.rate] for one in asked], device=self.device)
        momenta = torch.tensor([[one.work.momentum] for one in asked], device=self.device)
        directions = torch.zeros_like(rows) if any(one.work.momentum for one in asked) else None
        losses = torch.zeros(len(samples), len(asked), device=self.device)
        for step in range(len(samples)):
            count = sum(len(one.batches) > step for one in asked)
            active, now = asked[:count], rows[:count]
            gradients, losses[step, :count] = self._steps(samples[step, :count], weights[step, :count])
            for place, one in enumerate(active):
                if one.correct is not None:
                    gradients[place] = one.correct(gradients[place], now[place])
            if directions is not None:
                gradients = directions[:count].mul_(momenta[:count]).add_(gradients)
            now.addcmul_(gradients, rates[:count], value=-1.0)
            for place, one in enumerate(active):
                if one.settle is not None:
                    one.settle(now[place])
        return losses.cpu()


class Steps:
    """The gradients and losses of models that lie in rows: `vmap` of one model's."""

    def __init__(self, task: Any, model: nn.Module, layout: Layout, rows: Tensor) -> None:
        self._task, self._model, self._layout, self._rows = task, model, layout, rows
        self._names = [name for name, _ in model.named_parameters()]

    def __call__(self, samples: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients and losses of as many rows as there are rows of samples, whose losses are weighted so."""
        rows = self._rows[: len(samples)].detach().requires_grad_()
        with torch.enable_grad():
            losses = vmap(self._one, randomness="different")(rows, samples, weights)
            (gradients,) = torch.autograd.grad(losses.sum(), rows)
        return gradients, losses.detach()

    def _one(self, row: Tensor, samples: Tensor, weights: Tensor) -> Tensor:
        named = dict(zip(self._names, self._layout.split(row), strict=True))
        losses = self._task.losses(lambda *given: functional_call(self._model, named, given), samples)
        mean: Tensor = (losses * weights).sum()
        return mean


def padded(batches: Sequence[Sequence[Integers]]) -> tuple[Tensor, Tensor]:
    """Return the samples of each step, client and place, and weights whose sums are means: those of places that a
    batch does not fill are zero, and a sample of the batch stands there."""
    steps, width = max(map(len, batches)), max((len(one) for own in batches for one in own), default=0)
    samples = np.zeros((steps, len(batches), width), dtype=np.int64)
    weights = np.zeros((steps, len(batches), width), dtype=np.float32)
    for client, own in enumerate(batches):
        for step, one in enumerate(own):
            samples[step, client] = one[0]
            samples[step, client, : len(one)] = one
            weights[step, client, : len(one)] = 1 / len(one)
    return torch.from_numpy(samples), torch.from_numpy(weights)


class Meeting:
    """Parts that run as threads, one at a time and in their order, until each has ended or asks for something; then all
    that is asked for is answered at once, and they go on.

    - `answer`: returns an answer to everything that is asked for.
    """

    def __init__(self, answer: Callable[[Sequence[Asked]], Sequence[Descent]]) -> None:
        self._answer = answer
        self._guests: list[_Guest] = []
        self._current: _Guest | None = None

    def run(self, parts: Sequence[Callable[[], T]]) -> list[T]:
        """Run parts to their ends, and return their results; the first error of any is raised when all have ended."""
        self._guests = [_Guest(part) for part in parts]
        active = self._guests
        while active:
            for guest in active:
                self._current = guest
                guest.go_on()
            active = [guest for guest in active if not guest.ended]
            if active:
                try:
                    answers = self._answer([guest.asked for guest in active])
                except BaseException as error:
                    for guest in active:
                        guest.refused = error
                else:
                    for guest, answer in zip(active, answers, strict=True):
                        guest.answer = answer
        for guest in self._guests:
            if guest.error is not None:
                raise guest.error
        return [guest.result for guest in self._guests]

    def ask(self, asked: Asked) -> Descent:
        """Wait, in a part's thread, until all others have asked or ended, and return the answer."""
        assert self._current is not None
        return self._current.ask(asked)


class _Guest:
    """A part in a thread of its own, which runs only while `go_on` waits for it."""

    def __init__(self, part: Callable[[], Any]) -> None:
        self.asked: Any = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.refused: BaseException | None = None
        self.ended = False
        self._part = part
        self._may_go, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        self._may_go.release()
        self._has_stopped.acquire()

    def ask(self, asked: Asked) -> Descent:
        self.asked = asked
        self._has_stopped.release()
        self._may_go.acquire()
        if self.refused is not None:
            raise self.refused
        answer: Descent = self.answer
        return answer

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            self.result = self._part()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._has_stopped.release()
