"""Where gradients come from: a source tells a sink when each is ready. Autograd is one; sharded models and pipelines
are others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from laconic.runtime.autograd_hooks import BackwardHooks
from laconic.worker import Worker


class GradientSink(Protocol):
    """What is told of a model's passes. Nothing waits in any of these but in `backward_ended`."""

    def forward_ended(self) -> None:
        """Note the end of a forward pass."""
        ...

    def gradient_ready(self, i: int) -> None:
        """Note that the i-th trainable parameter has its gradient."""
        ...

    def backward_ended(self) -> None:
        """Note that every gradient of this pass has been reported; the averages are due."""
        ...

    def backward_abandoned(self) -> None:
        """Note that a pass raised half-way."""
        ...

    def skips_gradients(self) -> bool:
        """Return whether some gradients are not computed in this step, so that a pass may have none at all."""
        ...


class GradientSource(Protocol):
    """A source at work, until it is removed."""

    def report_gradients(self, wanted: bool) -> None:
        """Report every gradient of the passes to come, or none: where none is wanted, passes are not reported either,
        and nothing of this library runs in them."""
        ...

    def remove(self) -> None: ...


MakeSource = Callable[[Worker, nn.Module, Sequence[nn.Parameter], GradientSink], GradientSource]


def autograd_source(
    worker: Worker, model: nn.Module, parameters: Sequence[nn.Parameter], sink: GradientSink
) -> GradientSource:
    """Report what autograd computes, through hooks on parameters and outputs, as soon as gradients are wanted."""
    return BackwardHooks(
        worker,
        model,
        parameters,
        sink.forward_ended,
        sink.gradient_ready,
        sink.backward_ended,
        sink.backward_abandoned,
        sink.skips_gradients,
        reports=False,
    )
