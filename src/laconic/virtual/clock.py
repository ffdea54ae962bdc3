"""The virtual clock: workers are threads of which only one runs at a time, in the order of their virtual times.

The right to run is a *baton*: only the thread that holds it runs. A worker keeps the baton until it must wait for an
operation. Then the worker with the earliest virtual time runs next, after every event that is earlier still (on the
network, or the start or end of a worker's life). So a run depends on nothing but its inputs. A worker never gives the
baton away inside an autograd hook, because waiting never happens there; but for sharded models, whose gradients are
computed in the worker's own thread (`parallel/fsdp/one_stream.py`).
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from laconic.errors import LaconicError
from laconic.network.fluid import Fluid
from laconic.virtual.membership import Life


class Operation:
    """An operation in flight: it is unfinished until the network reports the time at which it ended or failed."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.ended_seconds: float | None = None
        self.error: Exception | None = None
        self.waiting: list[Runner] = []
        self.on_end: list[Callable[[float], None]] = []  # called with the time at which it ended or failed


class LifeEnded(BaseException):
    """Raised inside a worker whose life is over, to unwind its thread."""


class SimulationStopped(BaseException):
    """Raised inside all other workers after one has failed, to unwind their threads."""


class Runner:
    """One life of one worker: a thread with a virtual time of its own."""

    def __init__(self, clock: Clock, rank: int, lives: Sequence[Life], body: Callable[[int], Any]) -> None:
        self.clock, self.rank, self.life, self.later_lives = clock, rank, lives[0], lives[1:]
        self.seconds = self.life.begin_seconds
        self.result: Any = None
        self.error: BaseException | None = None
        self.waits_for: Operation | None = None
        self.done = self.must_end = False
        self._body = body
        self._baton = threading.Lock()  # locked while another thread runs
        self._baton.acquire()
        self.thread = threading.Thread(target=self._run, name=f"laconic-virtual-{rank}", daemon=True)

    def _run(self) -> None:
        self._baton.acquire()
        try:
            self.clock.resumed(self)
            self.result = self._body(self.rank)
        except BaseException as error:
            self.error = error
        self.done = True
        self.clock.finished(self)

    def resume(self) -> None:
        """Give this worker the baton: its thread runs from here on."""
        self._baton.release()

    def pause(self) -> None:
        """Block this worker's thread until it is given the baton again."""
        self._baton.acquire()
        self.clock.resumed(self)

    def pass_time(self, seconds: float, step_ends: bool = False) -> None:
        """Let the worker compute for so many seconds; its life may end meanwhile, or when it has finished its step."""
        self.clock.check()
        self.seconds += seconds
        if self.seconds >= self.life.end_seconds and (step_ends or not self.life.leaves_gracefully):
            if not self.life.leaves_gracefully:
                self.seconds = self.life.end_seconds
            raise LifeEnded


class Clock:
    """Runs one function (the body) on all workers concurrently in virtual time.

    `on_switch` is called with the rank of the worker that runs next, `on_life_end` with a worker whose life ended
    before its body returned.
    """

    def __init__(
        self,
        fluid: Fluid,
        on_switch: Callable[[int], None] = lambda rank: None,
        on_life_end: Callable[[Runner], None] = lambda runner: None,
    ) -> None:
        self.fluid = fluid
        self._on_switch, self._on_life_end = on_switch, on_life_end
        self._body: Callable[[int], Any] = lambda rank: None
        self._runners: list[Runner] = []
        self._by_rank: dict[int, Runner] = {}
        self._ready: list[tuple[float, int, int, Runner]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._alive = 0
        self._finished = threading.Semaphore(0)
        self._failed: BaseException | None = None

    def run(self, body: Callable[[int], Any], lives: Sequence[Sequence[Life]]) -> list[Any]:
        """Run each worker's lives to their ends; the first error of any worker ends all of them and is raised here.

        A life that would begin after all other workers have ended is left out. A worker's result is that of its last
        life.
        """
        self._body = body
        for rank, worker_lives in enumerate(lives):
            if worker_lives:
                self._begin(rank, worker_lives)
        self._pass_baton()
        try:
            self._finished.acquire()
        except BaseException as error:  # Ctrl-C: the running worker notices it when it computes or waits next
            self._failed = self._failed or error
            self._finished.acquire()
        for runner in self._runners:
            runner.thread.join()
        if self._failed is not None:
            raise self._failed
        return [self._by_rank[rank].result if rank in self._by_rank else None for rank in range(len(lives))]

    @property
    def survivors(self) -> list[int]:
        """The ranks of the workers whose body returned."""
        return [rank for rank, runner in self._by_rank.items() if runner.error is None]

    def drain(self) -> None:
        """Deliver everything that is still in flight, after all workers have ended."""
        while (flows := self.fluid.next_event()) < math.inf:
            self.fluid.advance(flows)

    def check(self) -> None:
        """Raise `SimulationStopped` if any worker has failed."""
        if self._failed is not None:
            raise SimulationStopped

    def runner(self, rank: int) -> Runner:
        """Return the worker's present life."""
        return self._by_rank[rank]

    @property
    def seconds(self) -> float:
        """The virtual time at which the last worker ended."""
        return max((runner.seconds for runner in self._by_rank.values()), default=0.0)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` at this virtual time."""
        heapq.heappush(self._events, (seconds, next(self._serial), act))

    # ------------------------------------------------------------------------------------------ from workers

    def wait(self, runner: Runner, operation: Operation) -> None:
        """Block the worker until the operation has ended; its virtual time is then at least the operation's end."""
        if operation.ended_seconds is None:
            operation.waiting.append(runner)
            runner.waits_for = operation
            self._pass_baton()
            runner.pause()
        self.check()
        assert operation.ended_seconds is not None
        runner.pass_time(max(operation.ended_seconds - runner.seconds, 0.0))
        if operation.error is not None:
            raise operation.error

    def end(self, operation: Operation, seconds: float, error: Exception | None = None) -> None:
        """End an operation at this time and wake up whoever waits for it; one that has ended already is not changed."""
        if operation.ended_seconds is not None:
            return
        operation.ended_seconds, operation.error = seconds, error
        for runner in operation.waiting:
            runner.waits_for = None
            self._make_ready(runner, max(runner.seconds, seconds))
        operation.waiting.clear()
        for act in operation.on_end:
            act(seconds)

    def resumed(self, runner: Runner) -> None:
        """Called by a worker's thread when it has received the baton."""
        self._on_switch(runner.rank)
        self.check()
        if runner.must_end:
            raise LifeEnded

    def finished(self, runner: Runner) -> None:
        """Called by a worker's thread when its body has returned or raised."""
        self._alive -= 1
        if isinstance(runner.error, LifeEnded):
            self._on_life_end(runner)
            if runner.later_lives:  # the next life never begins before this one has ended
                begin = max(runner.later_lives[0].begin_seconds, runner.seconds)
                rest = [replace(runner.later_lives[0], begin_seconds=begin), *runner.later_lives[1:]]
                self.at(begin, lambda: self._begin(runner.rank, rest))
        elif runner.error is not None and not isinstance(runner.error, SimulationStopped) and self._failed is None:
            self._failed = runner.error
        self._pass_baton()

    # ------------------------------------------------------------------------------------------ lives

    def _begin(self, rank: int, lives: Sequence[Life]) -> None:
        runner = self._by_rank[rank] = Runner(self, rank, lives, self._body)
        self._runners.append(runner)
        self._alive += 1
        runner.thread.start()
        self._make_ready(runner, runner.life.begin_seconds)
        if math.isfinite(runner.life.end_seconds) and not runner.life.leaves_gracefully:
            self.at(runner.life.end_seconds, lambda: self._end_life_while_waiting(runner))

    def _end_life_while_waiting(self, runner: Runner) -> None:
        """Wake a worker up whose life ends while it waits, so that it unwinds. A busy one notices by itself."""
        if runner.waits_for is not None:
            runner.waits_for.waiting.remove(runner)
            runner.waits_for = None
            runner.must_end, runner.seconds = True, runner.life.end_seconds
            self._make_ready(runner, runner.seconds)

    def _make_ready(self, runner: Runner, seconds: float) -> None:
        heapq.heappush(self._ready, (seconds, runner.rank, next(self._serial), runner))

    # ------------------------------------------------------------------------------------------ the baton

    def _pass_baton(self) -> None:
        """Give the baton to the worker with the earliest time, after all earlier events have happened."""
        if self._failed is None:
            self._run_earlier_events()
        if self._failed is not None:  # wake all workers up, one by one, to unwind
            rest = next((r for r in self._runners if not r.done), None)
            if rest is None:
                self._finished.release()
            else:
                rest.resume()
            return
        if self._ready:
            heapq.heappop(self._ready)[-1].resume()
        else:
            self._finished.release()

    def _run_earlier_events(self) -> None:
        while self._alive or (self._events and self._events[0][0] < self.seconds):
            earliest = self._ready[0][0] if self._ready else math.inf
            flows = self.fluid.next_event()
            event = self._events[0][0] if self._events else math.inf
            if event < earliest and event <= flows:
                heapq.heappop(self._events)[-1]()
            elif flows < earliest:
                self.fluid.advance(flows)
            elif earliest < math.inf or not self._alive:
                return
            else:
                self._failed = LaconicError(self._deadlock())
                return

    def _deadlock(self) -> str:
        runners = self._by_rank.values()
        stuck = [f"rank {r.rank} in {r.waits_for.what}" for r in runners if r.waits_for is not None]
        ended = [str(r.rank) for r in runners if r.done]
        rest = f"; rank {', '.join(ended)} ended already" if ended else ""
        return f"the virtual workers wait for each other for ever: {', '.join(stuck[:8])}{rest}"
