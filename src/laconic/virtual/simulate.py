"""`laconic.simulate`: run a function on N virtual workers, with real gradients and a virtual clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from laconic.errors import LaconicError, WorkerLost
from laconic.network.fluid import Fluid
from laconic.network.levels import NO_TIME_AT_ALL, Network
from laconic.runtime import current_worker
from laconic.runtime.ledger import Ledger
from laconic.runtime.timeline import Timeline
from laconic.virtual.compute import Compute
from laconic.virtual.guards import guards
from laconic.virtual.membership import Event, Life, lives, lives_from
from laconic.virtual.recording import Recording
from laconic.virtual.rpc import Faults, VirtualRpc
from laconic.virtual.worker import VirtualWorker, World
from laconic.virtual.worker_states import WorkerStates


@dataclass(frozen=True)
class Simulated:
    """What came out: each worker's result, when the last one ended, and what each of them said."""

    results: list[Any]
    seconds: float
    workers: list[VirtualWorker]
    timeline: Timeline | None = None
    rpc: VirtualRpc | None = None
    """The machines that were hosted, what reached them, and every letter's trip."""


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
    a network, talking takes no time; without `compute`, computing takes none. `threads` are torch's own inside an
    operation: one by default, as on real workers, so that sums have the same order. `timeline` records what each worker
    did when.

    `events` say who joins, leaves, dies and returns when. A strategy that cannot go on without a lost worker ends with
    `WorkerLost`, noticed after `heartbeat_seconds` of silence; then all start again, at most `restarts` times, as soon
    as everybody is back. Strategies with a server have it on `servers` nodes of its own, beside the workers on the same
    network, or on the first workers; `faults` are what happens to servers and the links to them.
    """
    if workers < 1:
        raise LaconicError(f"a simulation needs at least one worker, not {workers}")
    network = network or Network.flat(workers, NO_TIME_AT_ALL)
    if network.size == workers and servers:
        network = replace(network, size=workers + servers)
    if network.size != workers + servers:
        raise LaconicError(f"the network is for {network.size} workers, the simulation has {workers}")
    story = lives(events, workers)
    states = WorkerStates(seed, threads)
    recording = Recording(workers) if timeline else None
    ledgers = [Ledger() for _ in range(workers)]
    with states.kept(), guards(), _patient_collector(workers):
        while True:
            world = World(Fluid(network.capacities, network.lanes), network, compute or Compute(), states.switch_to)
            world.recording, world.heartbeat_seconds = recording, heartbeat_seconds
            world.rpc = VirtualRpc(world, servers, workers, faults)
            world.absent = tuple(r for r, of_one in enumerate(story) if not of_one or of_one[0].begin_seconds > 0)
            made: dict[int, VirtualWorker] = {}

            def body(rank: int, world: World = world, made: dict[int, VirtualWorker] = made) -> Any:
                worker = made[rank] = VirtualWorker(world, rank, workers, ledgers[rank])
                states.begin()
                with current_worker.acting_as(worker):
                    result = function()
                    worker.say_goodbye()
                    return result

            try:
                results = world.clock.run(body, story)
                if world.rpc.hosted_actors:
                    world.clock.drain()
                if world.lost and not world.clock.survivors:
                    raise max(world.lost.values(), key=lambda loss: loss[0])[1]
                break
            except WorkerLost:
                if restarts == 0:
                    raise
                restarts -= 1
                story = _when_all_are_back(story, world.clock.seconds, world.ever_lost)
    out = [made.get(rank) or VirtualWorker(world, rank, workers, ledgers[rank]) for rank in range(workers)]
    seen = None if recording is None else recording.timeline
    return Simulated(results, world.clock.seconds, out, seen, world.rpc)


def _when_all_are_back(story: list[list[Life]], now_seconds: float, lost: set[int]) -> list[list[Life]]:
    """The rest of the story, from the moment at which every lost worker lives again."""
    rest = lives_from(now_seconds, story)
    begins = [rest[rank][0].begin_seconds for rank in lost if rest[rank]]
    rest = lives_from(max([now_seconds, *begins]), story)
    gone = [rank for rank, of_one in enumerate(rest) if not of_one]
    if gone:
        raise LaconicError(f"rank {gone[0]} is gone for good, so nobody can start again: let it return with an event")
    return rest


@contextmanager
def _patient_collector(workers: int) -> Iterator[None]:
    """N workers make N times the objects of one: look for garbage as seldom per worker as a process would."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] * min(workers, 100), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
