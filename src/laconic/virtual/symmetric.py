"""Many workers who do the same at their own speeds, priced without gradients: ten thousand take seconds.

A crowd is one worker to the strategy and N to the clock: it runs the very same session, words and messages once, while
its time is a vector. What a collective waits for is the latest of all; what it costs is the network's matter. It prices
whatever does not depend on a tensor's content; accuracy needs workers of their own (`laconic.simulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.collective import flows
from laconic.errors import LaconicError
from laconic.network.flow import Flow
from laconic.network.fluid import Fluid
from laconic.network.levels import Network
from laconic.profile.skeleton import add_parameter
from laconic.runtime.counted_group import CountedGroup
from laconic.runtime.ledger import Ledger
from laconic.runtime.session import Options, Session
from laconic.runtime.tiers import level_names
from laconic.strategy import Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute, Part


@dataclass(frozen=True)
class Priced:
    """When each step was over for the last worker, and what rank 0 sent in all."""

    ends_seconds: NDArray[np.float64]
    sent_bytes: float

    @property
    def step_seconds(self) -> NDArray[np.float64]:
        return np.diff(self.ends_seconds, prepend=0.0)


def price(
    strategy: str | Strategy,
    tensors: Sequence[TensorSpec],
    network: Network,
    compute: Compute | None = None,
    steps: int = 1,
) -> Priced:
    """So many steps of a model with these tensors (in registration order) on all of the network's workers."""
    chosen = Strategy.parse(strategy)
    if level_names(chosen):
        raise LaconicError(f"`{chosen}` has tiers, whose groups differ: price it with laconic.simulate")
    model = nn.Module()
    for spec in tensors:
        add_parameter(model, spec.name, nn.Parameter(torch.zeros(spec.shape, dtype=spec.dtype)))
    crowd = SymmetricWorker(network, compute or Compute())
    session = Session(crowd, model, chosen, crowd.world, {}, Options())  # type: ignore[arg-type]
    ends = []
    try:
        for _ in range(steps):
            crowd.computed("forward")
            for i, parameter in reversed(list(enumerate(session.parameters.dense))):
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                session.gradient_ready(i)
            session.backward_ended()
            session.step(lambda: None)
            ends.append(crowd.clock_seconds())
    finally:
        session.close()
    return Priced(np.array(ends), crowd.ledger.sent_bytes())


class SymmetricWorker:
    """N workers as one: rank 0 to the strategy, a vector of times to the clock."""

    host_size = 1

    def __init__(self, network: Network, compute: Compute) -> None:
        self.rank, self.size = 0, network.size
        self.ledger = Ledger()
        self.network, self.compute = network, compute
        self.fluid = Fluid(network.capacities, network.lanes)
        self.seconds = np.zeros(self.size)
        self.waited_seconds = 0.0
        self.world = SymmetricGroup(self)
        self._step = 0
        self._factors = compute.factors(self.size, 0)

    def clock_seconds(self) -> float:
        return float(self.seconds.max())

    def group(self, ranks: Sequence[int]) -> SymmetricGroup:
        raise LaconicError("a crowd has one group, everyone: price this with laconic.simulate")

    def computed(self, part: Part, share: float = 1.0, name: str | None = None) -> None:
        taken = self.compute.seconds(part, share, name) * self._factors
        if self.network.measured is not None:  # where computing slows talking down
            for begin, seconds in zip(self.seconds, taken, strict=True):
                self.fluid.computing(begin, begin + seconds, 1 / self.size)
        self.seconds += taken
        if part == "step":
            self._step += 1
            self._factors = self.compute.factors(self.size, self._step)

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        for numel in elements if self.compute.codecs else ():
            self.computed(part, numel, words)

    def stepper(self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]) -> None:
        """Nothing steps here."""

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        """Nothing runs backward here: `price` says when it would have ended."""


class SymmetricHandle:
    """An operation of everyone."""

    def __init__(self, crowd: SymmetricWorker, flow: Flow, what: str, tensor: Any, result: Any) -> None:
        self._crowd, self._result = crowd, result
        self._ended: float | None = None
        job = crowd.network.job(what, tensor, flow, range(crowd.size), self._end, lane=0)
        crowd.fluid.add(job, crowd.clock_seconds())

    def _end(self, seconds: float) -> None:
        self._ended = seconds

    def done(self) -> bool:
        return self._ended is not None and self._ended <= self._crowd.clock_seconds()

    def wait(self) -> Any:
        while self._ended is None:
            self._crowd.fluid.advance(self._crowd.fluid.next_event())
        self._crowd.waited_seconds += float(np.maximum(self._ended - self._crowd.seconds, 0).max())
        np.maximum(self._crowd.seconds, self._ended, out=self._crowd.seconds)
        return self._result


class SymmetricGroup(CountedGroup):
    """Everyone. Tensors come back as they went: a price does not look at them."""

    def __init__(self, crowd: SymmetricWorker) -> None:
        super().__init__(0, tuple(range(crowd.size)), crowd.ledger)
        self._crowd = crowd

    def barrier(self) -> SymmetricHandle:
        return self._start(flows.barrier(self.size), "barrier", None, None)

    def _all_reduce(self, tensor: Tensor, op: str) -> SymmetricHandle:
        return self._start(flows.all_reduce(self.size, tensor.nbytes), "all_reduce", tensor, tensor)

    def _all_gather(self, tensor: Tensor) -> SymmetricHandle:
        rows = tensor.new_zeros(self.size, *tensor.shape)  # pages that nobody touches cost nothing
        return self._start(flows.all_gather(self.size, tensor.nbytes), "all_gather", tensor, rows)

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int]) -> SymmetricHandle:
        """Each tells whoever is as far from it as those are from the first whom the first tells."""
        twice = np.tile(np.asarray(sends) * tensor.element_size(), 2)
        rows = np.lib.stride_tricks.sliding_window_view(twice, self.size)[self.size : 0 : -1]
        return self._start(flows.all_to_all(rows), "all_to_all", tensor, tensor.new_zeros(sum(receives)))

    def _reduce_scatter(self, flat: Tensor) -> SymmetricHandle:
        share = flat[: flat.numel() // self.size]
        rows = np.full((self.size, self.size), share.nbytes)
        return self._start(flows.all_to_all(rows), "reduce_scatter", flat, share)

    def _broadcast(self, tensor: Tensor, root: int) -> SymmetricHandle:
        return self._start(flows.broadcast(self.size, root, tensor.nbytes), "broadcast", tensor, tensor)

    def _send(self, tensor: Tensor, to: int, tag: int) -> SymmetricHandle:
        raise LaconicError("in a crowd nobody speaks to one other alone: price this with laconic.simulate")

    def _receive(self, tensor: Tensor, source: int, tag: int) -> SymmetricHandle:
        return self._send(tensor, source, tag)

    def _start(self, flow: Flow, what: str, tensor: Any, result: Any) -> SymmetricHandle:
        return SymmetricHandle(self._crowd, flow, what, tensor, result)
