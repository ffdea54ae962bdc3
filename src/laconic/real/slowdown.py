"""Artificially slow real workers: after computing, a worker waits as if it had taken longer.

It waits after a backward pass for what forward and backward took, and after the optimizer's step for what that took,
times (factor - 1). Never in between: nothing waits inside an autograd hook, so gradients are sent as soon as
they are there. What is not computing (loading, logging, communication, a comparison's gate) is not made longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd import Variable
from torch.optim import Optimizer

from laconic.real.worker import RealWorker
from laconic.runtime.autograd_hooks import BackwardHooks
from laconic.values.worker_speeds import WorkerSpeeds
from laconic.worker import Worker

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class _Paced(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def waited_seconds(self) -> float: ...


class Slowdown:
    """Slows one worker down by its factor. `slowed_seconds` is the time that it has waited in all."""

    def __init__(
        self,
        speeds: WorkerSpeeds,
        worker: _Paced,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.speeds, self.step, self.slowed_seconds = speeds, 0, 0.0
        self._worker, self._clock, self._sleep = worker, clock, sleep
        self._settled_seconds = 0.0  # computing that was waited for already, and these waits
        self._forward_seconds = 0.0  # computed since the last backward pass
        self._forward_began = self._backward_began = self._step_began = math.nan
        self._in_backward = self._is_cuda = False
        self._passes = self._passes_before_step = self._steps_within = 0
        self._attached: WeakKeyDictionary[nn.Module, list[BackwardHooks | RemovableHandle]] = WeakKeyDictionary()

    def attach(self, model: nn.Module, optimizer: Optimizer, counts: bool) -> None:
        """Follow this model and the user's own optimizer; with `counts`, its steps are the worker's steps.

        Call it before other hooks are registered, so that the wait comes before what these do at the end of a pass.
        """
        for old in self._attached.pop(model, ()):
            old.remove()
        trainable = [p for p in model.parameters() if p.requires_grad]
        self._is_cuda = any(p.is_cuda for p in trainable)
        self._attached[model] = [
            model.register_forward_pre_hook(_Before(self._begin_forward)),
            BackwardHooks(self, model, trainable, self._end_forward, lambda i: None, self._end_backward, self._abandon),
            optimizer.register_step_pre_hook(lambda *_: self._begin_step()),
            optimizer.register_step_post_hook(lambda *_: self._end_step(counts)),
        ]

    def next_step(self) -> None:
        """Count a step; a worker's factor may change between steps."""
        self.step += 1

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        """Note that a backward pass begins, at the first of the models it runs through, and call `finish` at its
        end."""
        if not self._in_backward:
            self._in_backward, self._backward_began = True, self._now()
            self._passes += 1
        Variable._execution_engine.queue_callback(finish)

    def _begin_forward(self) -> None:
        self._forward_began = self._now()

    def _end_forward(self) -> None:
        self._forward_seconds += self._now() - self._forward_began

    def _abandon(self) -> None:
        self._in_backward, self._forward_seconds = False, 0.0

    def _end_backward(self) -> None:
        if not self._in_backward:
            return
        if self._is_cuda:
            torch.cuda.synchronize()  # until now, kernels were only queued
        took = self._forward_seconds + self._now() - self._backward_began
        self._in_backward, self._forward_seconds = False, 0.0
        self._slow_down(took)

    def _begin_step(self) -> None:
        """Note the start of a step. torch calls this again within a step whose class calls its parent's; a step that
        raised does not count."""
        if self._steps_within == 0 or self._passes != self._passes_before_step:
            self._steps_within, self._passes_before_step, self._step_began = 0, self._passes, self._now()
        self._steps_within += 1

    def _end_step(self, counts: bool) -> None:
        self._steps_within -= 1
        if self._steps_within == 0:
            self._slow_down(self._now() - self._step_began)
            if counts:
                self.next_step()

    def _slow_down(self, computed_seconds: float) -> None:
        factor = self.speeds.factor(self._worker.rank, self.step)
        self._settled_seconds += computed_seconds
        if factor > 1:
            begin = self._clock()
            self._sleep((factor - 1) * computed_seconds)
            slept_seconds = self._clock() - begin
            self._settled_seconds += slept_seconds
            self.slowed_seconds += slept_seconds

    def _now(self) -> float:
        """Return a clock that stops while the worker waits, here or for others: a step with a closure contains both."""
        return self._clock() - self._worker.waited_seconds - self._settled_seconds


class _Before:
    """A hook that notices the start of a forward pass. A copy or pickle of the model gets one that does nothing."""

    def __init__(self, notice: Callable[[], None] | None = None) -> None:
        self._notice = notice

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if self._notice is not None:
            self._notice()

    def __reduce__(self) -> tuple[type[_Before], tuple[()]]:
        return _Before, ()


def slow_down(worker: Worker, model: nn.Module, optimizer: Optimizer, counts: bool) -> None:
    """Attach the worker's slowdown to this model and optimizer, if it has one; see `Slowdown.attach`."""
    if isinstance(worker, RealWorker) and worker.slowdown is not None:
        worker.slowdown.attach(model, optimizer, counts)
