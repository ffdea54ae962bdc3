"""`laconic.simulate`: run a function on N virtual workers, with real gradients and a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laconic.engine import connect
from laconic.engine.virtual.clock import Clock
from laconic.engine.virtual.compute import Compute
from laconic.engine.virtual.fluid import Fluid
from laconic.engine.virtual.guards import guards
from laconic.engine.virtual.network import Network
from laconic.engine.virtual.states import WorkerStates
from laconic.engine.virtual.worker import VirtualWorker, World
from laconic.errors import LaconicError

_NO_TIME_AT_ALL = 1e30  # bits per second


@dataclass(frozen=True)
class Simulated:
    """What came out: each worker's result, when the last one ended, and what each of them said."""

    results: list[Any]
    seconds: float
    workers: list[VirtualWorker]


def simulate(
    function: Callable[[], Any],
    workers: int,
    network: Network | None = None,
    compute: Compute | None = None,
    seed: int = 0,
    threads: int = 1,
) -> Simulated:
    """Run `function` once in each of N virtual workers of this process; inside, laconic behaves as among N processes.

    Deterministic for a seed. Random states (torch, numpy, random) and the default dtype are each worker's own. Without
    a network, talking takes no time; without `compute`, computing takes none. `threads` are torch's own inside an
    operation: one by default, as on real workers, so that sums have the same order.
    """
    if workers < 1:
        raise LaconicError(f"a simulation needs at least one worker, not {workers}")
    network = network or Network.flat(workers, _NO_TIME_AT_ALL)
    if network.size != workers:
        raise LaconicError(f"the network is for {network.size} workers, the simulation has {workers}")
    states = WorkerStates(seed, threads)
    clock = Clock(Fluid(network.capacities, network.lanes), states.switch_to)
    world = World(clock, network, compute or Compute())
    made = [VirtualWorker(world, rank, workers) for rank in range(workers)]

    def body(worker: VirtualWorker) -> Callable[[], Any]:
        def run() -> Any:
            with connect.acting_as(worker):
                return function()

        return run

    with states.kept(), guards():
        results = clock.run([body(worker) for worker in made])
    return Simulated(results, clock.seconds, made)
