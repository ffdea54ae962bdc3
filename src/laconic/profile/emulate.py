"""Emulated compute: a model with a profile's tensors whose passes wait instead of computing.

Several workers on a few cores compete for them, which hides or fakes overlap. Waiting costs nothing, so with compute
and network slowed alike (`dilation`) many workers on one host show a schedule's overlap as on separate hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laconic.cost.from_profile import dtype_of
from laconic.profile.parameters_only import add_parameter
from laconic.values.profile import Profile, ProfileError


@dataclass
class Pacer:
    """Waits whose total is exact: one that overshoots makes the next one shorter."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _deadline: float = 0.0
    _paused: float = 0.0

    def begin(self) -> None:
        """Begin a pass now, and forget how late the last one ended."""
        self._deadline = self._paused = self.clock()

    def wait(self, seconds: float) -> None:
        """Wait until so many seconds after the last wait should have ended."""
        self._deadline += seconds
        rest = self._deadline - self.clock()
        if rest > 0:
            self.sleep(rest)

    def pause(self) -> None:
        """Stop the clock until `resume`: what happens meanwhile does not count as computing."""
        self._paused = self.clock()

    def resume(self) -> None:
        """Start the clock again after `pause`."""
        self._deadline += self.clock() - self._paused


class _Layer(torch.autograd.Function):
    """Return the input in forward; in backward wait, then give the parameter a gradient."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, parameter: Tensor, wait: Callable[[], None]) -> Tensor:
        ctx.shape, ctx.dtype, ctx.wait = parameter.shape, parameter.dtype, wait
        return number.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.wait()
        (gradient,) = gradients
        return gradient, gradient.to(ctx.dtype).expand(ctx.shape), None


@dataclass
class _Work:
    """The forward and backward seconds of one parameter."""

    name: str
    forward_seconds: float
    backward_seconds: float


class _Stage(nn.Module):
    """A module of the profile's model: it waits for its parameters' forward time and sets up their backward waits."""

    def __init__(self, pacer: Pacer) -> None:
        super().__init__()
        self._pacer = pacer

    def forward(self, number: Tensor, works: Sequence[_Work]) -> Tensor:
        self._pacer.resume()
        self._pacer.wait(sum(work.forward_seconds for work in works))
        for work in works:
            number = _Layer.apply(number, getattr(self, work.name), partial(self._pacer.wait, work.backward_seconds))
        self._pacer.pause()
        return number


class Emulated(nn.Module):
    """A model with the parameters (by their names) and the times of a profile.

    `model(x)` is the number x; its backward produces gradients one by one, in the profile's order and time, each
    filled with the gradient that backward began with. Forward runs through the modules in the opposite order, and
    divides over tensors as backward does. The optimizer's own time is waited for in the next forward pass.
    """

    def __init__(self, profile: Profile, dilation: float, pacer: Pacer) -> None:
        super().__init__()
        model = profile.model
        self._pacer, self._step_seconds = pacer, model.step.median * dilation
        whole = sum(tensor.backward_seconds for tensor in model.tensors)
        self._visits: list[tuple[_Stage, list[_Work]]] = []
        for tensor in reversed(model.tensors):
            made = nn.Parameter(torch.ones(tensor.shape, dtype=dtype_of(tensor)))
            stage = add_parameter(self, tensor.name, made, partial(_Stage, pacer))
            if not isinstance(stage, _Stage):
                raise ProfileError(f"{tensor.name!r} belongs to no module: write its name with a dot, as layer.weight")
            share = tensor.backward_seconds / whole if whole else 1 / len(model.tensors)
            if not self._visits or self._visits[-1][0] is not stage:
                self._visits.append((stage, []))
            name, forward = tensor.name.rpartition(".")[2], share * model.forward.median
            self._visits[-1][1].append(_Work(name, forward * dilation, tensor.backward_seconds * dilation))

    def forward(self, x: float) -> Tensor:
        self._pacer.begin()
        self._pacer.wait(self._step_seconds)
        self._pacer.pause()
        number = torch.tensor(float(x), requires_grad=True)
        for stage, works in self._visits:
            number = stage(number, works)
        number.register_hook(lambda _: self._pacer.begin())
        return number


def emulated(profile: Profile, dilation: float = 1.0, pacer: Pacer | None = None) -> Emulated:
    """Return a model that takes `dilation` times the profile's time without computing; 0 takes no time at all.

    A network slowed alike has its rate divided and its delay multiplied by `dilation`. On the virtual engine the clock
    advances by itself (`Compute.from_profile`), so no waiting is needed: give 0 there.
    """
    return Emulated(profile, dilation, pacer or Pacer())
