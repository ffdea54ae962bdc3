"""`laconic.simulate`: run a function on N virtual workers, with real gradients and a virtual clock."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from laconic.errors import LaconicError, WorkerLost
from laconic.network.network_tree import UNLIMITED_BITS_PER_SECOND, Network
from laconic.runtime import current_worker, metrics
from laconic.runtime.ledger import Ledger
from laconic.runtime.timeline import Timeline
from laconic.virtual.compute import Compute
from laconic.virtual.curves import Curve, LoggedValue, as_dataframe, curves_of
from laconic.virtual.guards import guards
from laconic.virtual.membership import Event, Life, lives, lives_from
from laconic.virtual.recording import Recording
from laconic.virtual.rpc import Faults, VirtualRpc
from laconic.virtual.setup import VirtualSetup
from laconic.virtual.worker import Simulation, VirtualWorker
from laconic.virtual.worker_states import WorkerStates

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Simulated:
    """The outcome of a simulation.

    - `results`: what the function returned on each worker.
    - `seconds`: the virtual time at which the last worker ended.
    - `workers`: the workers themselves; `workers[0].ledger.sent_bytes()` is what the first one has sent.
    - `timeline`: who did what when, where it was asked for; `timeline.write("trace.json")` is for ui.perfetto.dev.
    - `rpc`: the actors that were hosted, what they received, and when each message was in flight.
    - `logged`: every value that a worker gave to `laconic.log`, in the order in which they were logged.
    """

    results: list[Any]
    seconds: float
    workers: list[VirtualWorker]
    timeline: Timeline | None = None
    rpc: VirtualRpc | None = None
    logged: tuple[LoggedValue, ...] = ()

    def curves(self, metric: str | None = None, worker: int | None = None) -> list[Curve]:
        """Return what was logged as curves, one for each metric and worker: `plt.plot(curve.seconds, curve.values)`.

        - `metric`: only this one; default: all.
        - `worker`: only this one's; default: all.
        """
        return curves_of(self.logged, metric, worker)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return what was logged as a pandas data frame: worker, step, seconds, sent_bytes, metric, value."""
        return as_dataframe(self.logged)


def simulate(
    function: Callable[[], Any],
    workers: int,
    network: str | os.PathLike[str] | Network | None = None,
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

    Deterministic for a seed. Random states (torch, numpy, random) and the default dtype are each worker's own.

    - `function`: what each worker runs; it takes nothing, and asks `laconic.rank()` who it is.
    - `workers`: their number.
    - `network`: a rate such as `"100Mbit"` (one switch, 50 µs one way), a `.toml` file that describes links, sites,
      slow workers and events (docs/virtual.md), or a `laconic.Network`. Without it, communication takes no time.
    - `compute`: how long computing takes, a `laconic.Compute`; default: what the file says, or no time.
    - `seed`: of the workers' random states.
    - `threads`: torch's own inside an operation; one, as on real workers, keeps sums in one order.
    - `timeline`: record what each worker did when.
    - `events`: when workers join, leave, die and return, each a `laconic.Event`, beside those of the file.
    - `restarts`: a strategy that cannot go on without a lost worker ends with `WorkerLost`; with restarts all workers
      start again, at most so often, as soon as all lost ones have returned.
    - `heartbeat_seconds`: the silence after which a dead worker's loss is noticed.
    - `servers`: nodes beside the workers, on the same network, on which a strategy's servers run; default: they run on
      the first workers.
    - `faults`: what happens to servers and the links to them, a `laconic.Faults`.

    The result has what each call returned (`results`), the virtual time (`seconds`), and what was logged as curves
    (`curves()`) and as a data frame (`to_dataframe()`).
    """
    if workers < 1:
        raise LaconicError(f"a simulation needs at least one worker, not {workers}")
    setup = _described(network, workers)
    network, compute, events = setup.network, compute or setup.compute, (*setup.events, *events)
    if network.size == workers and servers:
        network = replace(network, size=workers + servers)
    if network.size != workers + servers:
        raise LaconicError(
            f"the network is for {network.size} workers, the simulation has {workers}: give Network(size={workers}, …)"
        )
    lives_by_worker = lives(events, workers)
    states = WorkerStates(seed, threads)
    recording = Recording(workers) if timeline else None
    logged: list[LoggedValue] = []
    ledgers = [Ledger() for _ in range(workers)]
    with states.kept(), guards(), _patient_collector(workers):
        while True:
            simulation = Simulation(network.fluid(), network, compute, states.switch_to)
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
                metrics.observe(worker, partial(_keep, logged))
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
    return Simulated(results, simulation.clock.seconds, out, recorded, simulation.rpc, tuple(logged))


def _described(network: str | os.PathLike[str] | Network | None, workers: int) -> VirtualSetup:
    """Return the setting that was asked for: a network alone, or what a rate or a file describes."""
    if network is None:
        network = Network.flat(workers, UNLIMITED_BITS_PER_SECOND)
    if isinstance(network, Network):
        return VirtualSetup(network, Compute())
    if not isinstance(network, str | os.PathLike):
        raise LaconicError(f'network={network!r} is none: give a rate as "100Mbit", a .toml file, or a laconic.Network')
    return VirtualSetup.read(os.fspath(network), workers)


def _keep(logged: list[LoggedValue], worker: VirtualWorker, values: dict[str, float]) -> None:
    """Keep what a worker logs, with the time and what it has sent."""
    seconds, sent_bytes = worker.clock_seconds(), worker.ledger.sent_bytes()
    logged += [LoggedValue(worker.rank, worker.steps, seconds, sent_bytes, *item) for item in values.items()]


def _lives_after_restart(lives_by_worker: list[list[Life]], now_seconds: float, lost: set[int]) -> list[list[Life]]:
    """Return the lives that remain from the moment at which every lost worker has returned."""
    rest = lives_from(now_seconds, lives_by_worker)
    begins = [rest[rank][0].begin_seconds for rank in lost if rest[rank]]
    rest = lives_from(max([now_seconds, *begins]), lives_by_worker)
    gone = [rank for rank, worker_lives in enumerate(rest) if not worker_lives]
    if gone:
        raise LaconicError(f"rank {gone[0]} is gone for good, so nobody can start again: let it return with an event")
    return rest


_frozen: Literal["nothing", "by a simulation", "by others"] = "nothing"
"""Whose objects no collection looks through; those of others are counted once, since counting walks through them."""


@contextmanager
def _patient_collector(workers: int) -> Iterator[None]:
    """Collect garbage as seldom per worker as a process would: N workers make N times the objects of one."""
    global _frozen
    before = gc.get_threshold()
    gc.set_threshold(before[0] * min(workers, 100), *before[1:])
    if _frozen == "nothing" and gc.get_freeze_count():
        _frozen = "by others"  # who have their reasons: what came after theirs is collected as always
    freezes = _frozen == "nothing"
    if freezes:
        gc.freeze()  # what was imported before stays, so that no collection need look through it
        _frozen = "by a simulation"
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()
            _frozen = "nothing"
