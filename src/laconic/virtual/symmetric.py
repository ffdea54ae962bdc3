"""Symmetric workers: N workers that do the same at their own speeds, priced as one and without gradients.

To the strategy they are one worker, to the clock they are N: the session, the compressors and the messages run once,
while the time is a vector. A collective waits for the latest worker, and the network model prices it. This prices
everything that does not depend on a tensor's content, 10,000 workers in seconds; accuracy needs separate workers
(`laconic.simulate`).
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
from laconic.collective.chunk_memory import coded_bytes
from laconic.collective.live_probe import Measured, measured_links
from laconic.collective.price import price as price_program
from laconic.collective.program import Program
from laconic.errors import LaconicError
from laconic.network.flow import Flow
from laconic.network.fluid import Job
from laconic.network.network_tree import Network
from laconic.profile.parameters_only import add_parameter
from laconic.runtime.counted_group import CountedGroup
from laconic.runtime.ledger import Ledger
from laconic.runtime.session import Options, Session
from laconic.runtime.tiers import level_names
from laconic.strategy import Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute, Part
from laconic.worker import Coding, Communication


@dataclass(frozen=True)
class Priced:
    """The time at which each step had ended on the last worker, and the bytes rank 0 sent in all."""

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
    """Price some steps of a model with these tensors (in registration order) on all of the network's workers."""
    chosen = Strategy.parse(strategy)
    if level_names(chosen):
        raise LaconicError(f"`{chosen}` has tiers, whose groups differ: price it with laconic.simulate")
    model = nn.Module()
    for spec in tensors:
        add_parameter(model, spec.name, nn.Parameter(torch.zeros(spec.shape, dtype=spec.dtype)))
    worker = SymmetricWorker(network, compute or Compute())
    session = Session(worker, model, chosen, worker.world, {}, Options())  # type: ignore[arg-type]
    ends = []
    try:
        for _ in range(steps):
            worker.computed("forward")
            for i, parameter in reversed(list(enumerate(session.parameters.dense))):
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                session.gradients.gradient_ready(i)
            session.gradients.backward_ended()
            session.step(lambda: None)
            ends.append(worker.clock_seconds())
    finally:
        session.close()
    return Priced(np.array(ends), worker.ledger.sent_bytes())


class SymmetricWorker:
    """N equal workers as one: the strategy sees rank 0, the clock a vector of N times."""

    def __init__(self, network: Network, compute: Compute) -> None:
        self.rank, self.size, self.host_size = 0, network.size, network.host_size
        self.ledger = Ledger()
        self.network, self.compute = network, compute
        self.fluid = network.fluid()
        self.seconds = np.zeros(self.size)
        self.waited_seconds = 0.0
        self.world = SymmetricGroup(self)
        self._step = 0
        self._factors = compute.factors(self.size, 0)

    def clock_seconds(self) -> float:
        return float(self.seconds.max())

    def group(self, ranks: Sequence[int]) -> SymmetricGroup:
        raise LaconicError("symmetric workers have one group, of all workers: price this with laconic.simulate")

    @property
    def times_gradients(self) -> bool:
        return True

    def communication_stream(self, device: torch.device) -> None:
        """Return None: one stream computes everything."""

    def computed(self, part: Part, share: float = 1.0, name: str | None = None) -> None:
        durations = self.compute.seconds(part, share, name) * self._factors
        if self.network.measured is not None:  # where computing slows communication down
            for begin, seconds in zip(self.seconds, durations, strict=True):
                self.fluid.computing(begin, begin + seconds, 1 / self.size)
        self.seconds += durations
        if part == "step":
            self._step += 1
            self._factors = self.compute.factors(self.size, self._step)

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        seconds = self.compute.coding_seconds(part, words, elements)
        if seconds:
            self.computed(part, seconds, words)

    def stepper(self, optimizer: Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]) -> None:
        """Return None: prices need no optimizer steps."""

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        """Do nothing: there is no backward pass, and `price` calls the session at its end."""


class SymmetricHandle:
    """A collective among all symmetric workers."""

    def __init__(self, worker: SymmetricWorker, result: Any, job: Callable[[Callable[[float], None]], Job]) -> None:
        self._worker, self._result = worker, result
        self._ended: float | None = None
        worker.fluid.add(job(self._end), worker.clock_seconds())

    def _end(self, seconds: float) -> None:
        self._ended = seconds

    def done(self) -> bool:
        return self._ended is not None and self._ended <= self._worker.clock_seconds()

    def wait(self) -> Any:
        while self._ended is None:
            self._worker.fluid.advance(self._worker.fluid.next_event())
        self._worker.waited_seconds += float(np.maximum(self._ended - self._worker.seconds, 0).max())
        np.maximum(self._worker.seconds, self._ended, out=self._worker.seconds)
        return self._result


class SymmetricGroup(CountedGroup):
    """The group of all symmetric workers; its collectives leave tensors as they are, since prices ignore content."""

    def __init__(self, worker: SymmetricWorker) -> None:
        super().__init__(0, tuple(range(worker.size)), worker.ledger, worker.host_size)
        self._worker = worker

    def barrier(self) -> SymmetricHandle:
        return self._start(flows.barrier(self.size), "barrier", None, None)

    def _all_reduce(self, tensor: Tensor, op: str) -> SymmetricHandle:
        return self._start(flows.all_reduce(self.size, tensor.nbytes), "all_reduce", tensor, tensor)

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> SymmetricHandle:
        rows = tensor.new_zeros(self.size, *tensor.shape)  # untouched pages take no memory
        return self._start(flows.all_gather(self.size, tensor.nbytes), "all_gather", tensor, rows)

    def _all_to_all(self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None) -> SymmetricHandle:
        """Price an all-to-all in which rank r sends to rank r + k what rank 0 sends to rank k (modulo the size)."""
        twice = np.tile(np.asarray(sends) * tensor.element_size(), 2)
        rows = np.lib.stride_tricks.sliding_window_view(twice, self.size)[self.size : 0 : -1]
        return self._start(flows.all_to_all(rows), "all_to_all", tensor, tensor.new_zeros(sum(receives)))

    def _reduce_scatter(self, flat: Tensor) -> SymmetricHandle:
        share = flat[: flat.numel() // self.size]
        rows = np.full((self.size, self.size), share.nbytes)
        return self._start(flows.all_to_all(rows), "reduce_scatter", flat, share)

    def _broadcast(self, tensor: Tensor, root: int) -> SymmetricHandle:
        return self._start(flows.broadcast(self.size, root, tensor.nbytes), "broadcast", tensor, tensor)

    def clock_seconds(self) -> float:
        return self._worker.clock_seconds()

    def measure(self, device: torch.device) -> Communication[Measured]:
        """Return what a probe would find; it takes no time here."""
        yield []
        return measured_links(self._worker.network)

    def run(
        self, program: Program, flat: Tensor, control: float = 0.0, coding: Coding | None = None
    ) -> Communication[Tensor]:
        """Price a program as one operation, of as many bytes each way as the mean of its ranks has."""
        nbytes = flat.nbytes if coding is None else sum(coded_bytes(coding, program.shares))
        sent = float(program.sent_shares.mean()) * nbytes
        self._ledger.record("send", sent, 0, control)
        self._ledger.record("receive", 0, sent, control)
        seconds = price_program(program, nbytes, self._worker.network).seconds
        none = np.empty(0, dtype=np.int64)
        yield SymmetricHandle(self._worker, flat, lambda end: Job(none, none.astype(float), seconds, end, 0))
        return flat

    def _send(self, tensor: Tensor, to: int, tag: int) -> SymmetricHandle:
        raise LaconicError("symmetric workers have no point-to-point messages: price this with laconic.simulate")

    def _receive(self, tensor: Tensor, source: int, tag: int) -> SymmetricHandle:
        return self._send(tensor, source, tag)

    def _start(self, flow: Flow, what: str, tensor: Any, result: Any) -> SymmetricHandle:
        network, members = self._worker.network, range(self.size)
        return SymmetricHandle(self._worker, result, lambda end: network.job(what, tensor, flow, members, end, lane=0))
