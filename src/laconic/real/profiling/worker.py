"""The worker of a profiling run: `laconic profile` runs the script with it in place of the real one.

The session marks the progress of computing through `Worker.computed`, on either engine; here each mark is a time. All
workers begin each step together, as after a collective, and share the host as they will later. After enough steps
rank 0 writes the profile, and the script ends. Links and codecs are measured by the same processes, in rounds between
the steps, so that a passing disturbance does not fall on one thing alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn, optim

from laconic.errors import ContractError, LaconicError
from laconic.files import write_text
from laconic.profile.links import LinkTrials
from laconic.profile.machine import machine
from laconic.real.profiling.codecs import Codecs
from laconic.real.profiling.echo_group import EchoGroup
from laconic.real.profiling.steps import Step, evenness, latest, model_times
from laconic.real.worker import RealWorker
from laconic.runtime.ledger import Ledger
from laconic.runtime.no_sync import NoSync
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.runtime.parameters import Parameters
from laconic.runtime.session import Options, Session
from laconic.strategy import Sentence
from laconic.values.model_kind import model_kind
from laconic.values.profile import Profile
from laconic.values.run_config import RunConfig
from laconic.worker import Actor, ActorMessage, Group, Handle, Home, Priority, Worker

WARM_UP_STEPS = 4
ROUNDS, LEAST_ROUNDS = 8, 3
LEAST_BYTES = 4 * 2**20  # of the largest message to time, also for smaller models
LINK_SECONDS = 90.0
"""Rounds of links end when they have taken this long in all, but not before there are a few."""


class ProfilingWorker:
    """A worker whose groups are echo groups and whose steps are timed."""

    def __init__(self, real: RealWorker, config: RunConfig, parameters: Parameters, optimizer: optim.Optimizer) -> None:
        specs, device = parameters.specs, parameters.device
        self._real, self._config, self._specs, self._device = real, config, specs, device
        self._kind, self._optimizer = model_kind(specs, parameters.sparse_names), type(optimizer).__name__.lower()
        self.rank, self.size, self.host_size = real.rank, config.profile_as or real.size, real.host_size
        self.ledger, self.waited_seconds = Ledger(), 0.0
        self._world = self.group(range(self.size))
        self._codecs = Codecs(real.world, self._world, specs, config.profile_words, device)
        self._links = LinkTrials(real.world, max(LEAST_BYTES, sum(spec.nbytes for spec in specs)))
        self._rounds, self._probing_seconds = 0, 0.0
        self.steps: list[Step] = []
        self._marks: Step = {}
        self._pass = 0
        self._in_forward = True
        before_backward(self._backward_begins)
        self._begin()

    def group(self, ranks: Sequence[int]) -> EchoGroup:
        members = tuple(ranks)
        return EchoGroup(members.index(self.rank) if self.rank in members else -1, members, self.ledger)

    def clock_seconds(self) -> float:
        return time.perf_counter()

    @property
    def times_gradients(self) -> bool:
        return True

    def computed(self, part: str, share: float = 1.0, name: str | None = None) -> None:
        if self._device.type == "cuda":  # a mark is the time at which it was computed, not that at which it was queued
            torch.cuda.synchronize(self._device)
        self._marks[self._pass, part, name] = time.perf_counter() - self._began
        if part == "forward":
            self._pass += 1
            self._in_forward = False
        elif part == "step":
            self.steps.append(self._marks)
            timed = len(self.steps) - WARM_UP_STEPS
            if timed > 0 and timed % -(-self._config.profile_steps // ROUNDS) == 0:
                self._probe()
            if timed >= self._config.profile_steps:
                self._finish()
            self._begin()

    def coded(self, part: str, words: str, elements: Sequence[int]) -> None:
        """Do nothing: encoding and decoding are measured separately."""

    def stepper(
        self, optimizer: optim.Optimizer, parameters: Sequence[torch.Tensor], equal: Callable[[], bool]
    ) -> None:
        """Do nothing: as in a real process, the optimizer takes its own steps."""

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        def end() -> None:
            self._in_forward = True
            finish()

        self._real.at_end_of_backward(end)

    def _backward_begins(self) -> None:
        """Mark the end of a forward pass that no hook has marked: compiled models call none."""
        if self._in_forward:
            self.computed("forward")

    @property
    def world(self) -> EchoGroup:
        return self._world

    def _begin(self) -> None:
        self._marks, self._pass, self._in_forward = {}, 0, True
        self._real.world.barrier().wait()
        self._began = time.perf_counter()

    def host(self, address: str, home: Home, build: Callable[[], Actor]) -> None:
        raise LaconicError("a profiling run has no server: it times the default sentence, without compression")

    def call(self, address: str, message: ActorMessage, writes: bool, priority: Priority | None = None) -> Handle:
        raise LaconicError("a profiling run has no server: it times the default sentence, without compression")

    def shared_memory(self, group: Group, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return self._real.shared_memory(group, numel, dtype)

    def communication_stream(self, device: torch.device) -> None:
        """Return None: one stream computes everything."""

    def catch_up(self) -> None:
        """Do nothing: real time needs no synchronisation."""

    def _probe(self) -> None:
        """Measure codecs, and links until these have taken their time, which rank 0 decides."""
        self._codecs.round()
        spent = torch.tensor([self._probing_seconds], dtype=torch.float64)
        if self._rounds < LEAST_ROUNDS or float(self._real.world.broadcast(spent).wait()) < LINK_SECONDS:
            begin = time.perf_counter()
            self._links.round()
            self._rounds += 1
            self._probing_seconds += time.perf_counter() - begin

    def _finish(self) -> None:
        """Write the profile and end the script; all workers call it after the same step."""
        everyone: list[list[Step]] | None = [[] for _ in range(self._real.size)] if self.rank == 0 else None
        dist.gather_object(self.steps[WARM_UP_STEPS:], everyone)
        if everyone is not None and self._config.profile_to is not None:
            model = replace(model_times(latest(everyone), self._specs), even=evenness(everyone))
            asked = (self._config.net_bits_per_second, self._config.net_delay_seconds)
            links = self._links.result(*asked) if self._real.size == self.size > 1 else None
            found = Profile(
                model,
                self.size,
                machine(self._config.threads),
                links,
                self._codecs.result(),
                self._kind,
                self._optimizer,
            )
            write_text(Path(self._config.profile_to), found.to_json())
        self._real.world.barrier().wait()
        if self.rank == 0:
            print(f"laconic: {len(self.steps)} steps are profiled, and the script ends here", file=sys.stderr)
        sys.exit(0)


def before_backward(act: Callable[[], None]) -> None:
    """Call `act` at the begin of every backward pass of this process."""
    backward = torch.autograd.backward

    def acting_first(*given: Any, **named: Any) -> None:
        act()
        backward(*given, **named)

    torch.autograd.backward = acting_first


def profile_training(
    model: nn.Module, optimizer: optim.Optimizer, worker: Worker, config: RunConfig, gather_sparse: bool
) -> tuple[nn.Module, optim.Optimizer]:
    """Return what `distribute` returns in a profiling run: a session that does all of its work, in the default
    sentence, over echo groups."""
    if not isinstance(worker, RealWorker):
        raise ContractError("a profile is measured on real processes: leave out --engine virtual")
    parameters = Parameters.of(model, gather_sparse)
    actor = ProfilingWorker(worker, config, parameters, optimizer)
    options = Options(gather_sparse=gather_sparse)
    session = Session(actor, model, Sentence(), actor.world, {}, options)
    model.no_sync = NoSync(session)  # type: ignore[assignment]
    return model, DistributedOptimizer(optimizer, session)
