"""Emulated compute: a model with a profile's tensors whose passes wait instead of computing.

Several workers on a few cores fight for them, which hides or fakes overlap. Waiting costs nothing, so with compute and
network slowed alike (`dilation`) many workers on one machine show a schedule's overlap as on machines of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laconic.profile.skeleton import plant
from laconic.profile.values import Profile, TensorTime


@dataclass
class Pacer:
    """Waits that end when they should on the whole: one that overshoots makes the next shorter."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _deadline: float = 0.0

    def begin(self) -> None:
        """A pass begins now: lateness of the last one is forgotten."""
        self._deadline = self.clock()

    def wait(self, seconds: float) -> None:
        """Until so long after the last wait should have ended."""
        self._deadline += seconds
        rest = self._deadline - self.clock()
        if rest > 0:
            self.sleep(rest)


class _Layer(torch.autograd.Function):
    """Passes a number on; on the way back it waits, then gives its tensor a gradient."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, parameter: Tensor, wait: Callable[[], None]) -> Tensor:
        ctx.shape, ctx.dtype, ctx.wait = parameter.shape, parameter.dtype, wait
        return number.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.wait()
        (gradient,) = gradients
        return gradient, gradient.to(ctx.dtype).expand(ctx.shape), None


class Emulated(nn.Module):
    """Parameters (by their names) and times of a profile.

    `model(x)` is the number x; a backward from it brings gradients one by one, in the profile's order and time, each
    filled with what backward began with. The optimizer's own time is waited for in the next forward pass.
    """

    def __init__(self, profile: Profile, dilation: float, pacer: Pacer) -> None:
        super().__init__()
        model = profile.model
        self._pacer, self._dilation = pacer, dilation
        self._forward_seconds = model.forward.median + model.step.median
        self._tensors = [(tensor, self._place(tensor)) for tensor in model.tensors]

    def forward(self, x: float) -> Tensor:
        self._pacer.begin()
        self._pacer.wait(self._forward_seconds * self._dilation)
        number = torch.tensor(float(x), requires_grad=True)
        for tensor, parameter in reversed(self._tensors):
            number = _Layer.apply(
                number, parameter, partial(self._pacer.wait, tensor.backward_seconds * self._dilation)
            )
        number.register_hook(lambda _: self._pacer.begin())
        return number

    def _place(self, tensor: TensorTime) -> nn.Parameter:
        made = nn.Parameter(torch.ones(tensor.shape, dtype=getattr(torch, tensor.dtype)))
        plant(self, tensor.name, made)
        return made


def emulated(profile: Profile, dilation: float = 1.0, pacer: Pacer | None = None) -> Emulated:
    """A model that takes the profile's time, `dilation` times as long, without computing; 0: no time at all.

    A network slowed alike has its rate divided and its delay multiplied by `dilation`. On the virtual engine the clock
    passes by itself (`Compute.from_profile`), so nobody need wait: give 0 there.
    """
    return Emulated(profile, dilation, pacer or Pacer())
