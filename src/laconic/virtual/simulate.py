"""`laconic.simulate`: run a function on N virtual workers, with real gradients and a virtual clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from laconic.errors import LaconicError, WorkerLost
from laconic.network.fluid import Fluid
from laconic.network.network_tree import UNLIMITED_BITS_PER_SECOND, Network
from laconic.runtime import current_worker
from laconic.runtime.ledger import Ledger
from laconic.runtime.timeline import Timeline
from laconic.virtual.compute import Compute
from laconic.virtual.guards import guards
from laconic.virtual.membership import Event, Life, lives, lives_from
from laconic.virtual.recording import Recording
from laconic.virtual.rpc import Faults, VirtualRpc
from laconic.virtual.worker import Simulation, VirtualWorker
from laconic.virtual.worker_states import WorkerStates


@dataclass(frozen=True)
class Simulated:
    """The outcome of a simulation: each worker's result, the time at which the last one ended, and the workers
    themselves, whose ledgers hold what each has sent."""

    results: list[Any]
    seconds: float
    workers: list[VirtualWorker]
    timeline: Timeline | None = None
    rpc: VirtualRpc | None = None
    """The actors that were hosted, what they received, and when each message was in flight."""


def simulate(
    function: Callable[[], Any],
    workers: int,
    network: Network | None = None,
    compute: Compute | None = None,
    seed: int = 0,
    threads: int = 1,
    timeline: bool = False,
    events: Sequence[Event] = (),
    restarts: int = 0,
    heartbeat_seconds: float = 20.0,
    servers: int = 0,
    faults: Faults | None = None,
) -> Simulated:
    """Run `function` once in each of N virtual workers of this process; inside, laconic behaves as among N processes.

    Deterministic for a seed. Random states (torch, numpy, random) and the default dtype are each worker's own. Without
    a network, communication takes no time; without `compute`, computing takes none. `threads` are torch's own inside an
    operation: one by default, as on real workers, so that sums have the same order. `timeline` records what each worker
    did when.

    `events` are the times at which workers join, leave, die and return. A strategy that cannot go on without a lost
    worker ends with `WorkerLost`, noticed after `heartbeat_seconds` of silence; then all start again, at most
    `restarts` times, as soon as all lost workers have returned. A strategy's servers run on `servers` nodes of their
    own, beside the workers on the same network, or without such nodes on the first workers; `faults` are what happens
    to servers and the links to them.
    """
    if workers < 1:
        raise LaconicError(f"a simulation needs at least one worker, not {workers}")
    network = network or Network.flat(workers, UNLIMITED_BITS_PER_SECOND)
    if network.size == workers and servers:
        network = replace(network, size=workers + servers)
    if network.size != workers + servers:
        raise LaconicError(f"the network is for {network.size} workers, the simulation has {workers}")
    lives_by_worker = lives(events, workers)
    states = WorkerStates(seed, threads)
    recording = Recording(workers) if timeline else None
    ledgers = [Ledger() for _ in range(workers)]
    with states.kept(), guards(), _patient_collector(workers):
        while True:
            simulation = Simulation(
                Fluid(network.capacities, network.lanes), network, compute or Compute(), states.switch_to
            )
            simulation.recording, simulation.heartbeat_seconds = recording, heartbeat_seconds
            simulation.rpc = VirtualRpc(simulation, servers, workers, faults)
            simulation.absent = tuple(
                r
                for r, worker_lives in enumerate(lives_by_worker)
                if not worker_lives or worker_lives[0].begin_seconds > 0
            )
            built: dict[int, VirtualWorker] = {}

            def body(rank: int, simulation: Simulation = simulation, built: dict[int, VirtualWorker] = built) -> Any:
                worker = built[rank] = VirtualWorker(simulation, rank, workers, ledgers[rank])
                states.begin()
                with current_worker.acting_as(worker):
                    result = function()
                    worker.leave()
                    return result

            try:
                results = simulation.clock.run(body, lives_by_worker)
                if simulation.rpc.hosted_actors:
                    simulation.clock.drain()
                if simulation.lost and not simulation.clock.survivors:
                    raise max(simulation.lost.values(), key=lambda loss: loss[0])[1]
                break
            except WorkerLost:
                if restarts == 0:
                    raise
                restarts -= 1
                lives_by_worker = _lives_after_restart(lives_by_worker, simulation.clock.seconds, simulation.ever_lost)
    out = [built.get(rank) or VirtualWorker(simulation, rank, workers, ledgers[rank]) for rank in range(workers)]
    recorded = None if recording is None else recording.timeline
    return Simulated(results, simulation.clock.seconds, out, recorded, simulation.rpc)


def _lives_after_restart(lives_by_worker: list[list[Life]], now_seconds: float, lost: set[int]) -> list[list[Life]]:
    """Return the lives that remain from the moment at which every lost worker has returned."""
    rest = lives_from(now_seconds, lives_by_worker)
    begins = [rest[rank][0].begin_seconds for rank in lost if rest[rank]]
    rest = lives_from(max([now_seconds, *begins]), lives_by_worker)
    gone = [rank for rank, worker_lives in enumerate(rest) if not worker_lives]
    if gone:
        raise LaconicError(f"rank {gone[0]} is gone for good, so nobody can start again: let it return with an event")
    return rest


@contextmanager
def _patient_collector(workers: int) -> Iterator[None]:
    """Collect garbage as seldom per worker as a process would: N workers make N times the objects of one."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] * min(workers, 100), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
