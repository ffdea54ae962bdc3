"""The virtual clock: workers as threads that pass one baton, in the order of their virtual times.

Only the holder of the baton runs. It keeps it until it must wait for an operation; then whoever has the earliest time
goes on, or, if the network is earlier, the network does. So a run depends on nothing but its inputs. A worker never
gives the baton away inside an autograd hook, because waiting never happens there.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from laconic.engine.virtual.fluid import Fluid
from laconic.errors import LaconicError


class Operation:
    """Something under way: unfinished until the network says when it ended."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.ended_seconds: float | None = None
        self.waiting: list[Runner] = []


class Runner:
    """One worker's thread of control."""

    def __init__(self, clock: Clock, rank: int, body: Callable[[], Any]) -> None:
        self.clock, self.rank, self.seconds = clock, rank, 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.waits_for: Operation | None = None
        self.done = False
        self._body = body
        self._baton = threading.Lock()  # held while somebody else runs
        self._baton.acquire()
        self.thread = threading.Thread(target=self._run, name=f"laconic-virtual-{rank}", daemon=True)

    def _run(self) -> None:
        self._baton.acquire()
        try:
            self.clock.entered(self)
            self.result = self._body()
        except BaseException as error:
            self.error = error
        self.done = True
        self.clock.left(self)

    def hand_over(self) -> None:
        self._baton.release()

    def pause(self) -> None:
        self._baton.acquire()
        self.clock.entered(self)


class Stopped(BaseException):
    """Unwinds the other workers after one has failed."""


class Clock:
    """Runs bodies side by side in virtual time."""

    def __init__(self, fluid: Fluid, switched: Callable[[int], None] = lambda rank: None) -> None:
        self.fluid = fluid
        self._switched = switched
        self._runners: list[Runner] = []
        self._ready: list[tuple[float, int]] = []
        self._finished = threading.Semaphore(0)
        self._failed: BaseException | None = None

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run all to their ends; the first error of any ends all and is raised here."""
        self._runners = [Runner(self, rank, body) for rank, body in enumerate(bodies)]
        self._ready = [(0.0, rank) for rank in range(len(bodies))]
        for runner in self._runners:
            runner.thread.start()
        self._pass_on()
        self._finished.acquire()
        for runner in self._runners:
            runner.thread.join()
        if self._failed is not None:
            raise self._failed
        return [runner.result for runner in self._runners]

    def runner(self, rank: int) -> Runner:
        return self._runners[rank]

    @property
    def seconds(self) -> float:
        """When the last worker ended."""
        return max((runner.seconds for runner in self._runners), default=0.0)

    # ------------------------------------------------------------------------------------------ from workers

    def wait(self, runner: Runner, operation: Operation) -> None:
        """Until the operation has ended; the worker's time is then not before that."""
        if operation.ended_seconds is None:
            operation.waiting.append(runner)
            runner.waits_for = operation
            self._pass_on()
            runner.pause()
        if self._failed is not None:
            raise Stopped
        assert operation.ended_seconds is not None
        runner.seconds = max(runner.seconds, operation.ended_seconds)

    def end(self, operation: Operation, seconds: float) -> None:
        """The network (or whoever carries it out) says when it ended."""
        operation.ended_seconds = seconds
        for runner in operation.waiting:
            runner.waits_for = None
            heapq.heappush(self._ready, (max(runner.seconds, seconds), runner.rank))
        operation.waiting.clear()

    def entered(self, runner: Runner) -> None:
        self._switched(runner.rank)
        if self._failed is not None:
            raise Stopped

    def left(self, runner: Runner) -> None:
        if runner.error is not None and not isinstance(runner.error, Stopped) and self._failed is None:
            self._failed = runner.error
        self._pass_on()

    # ------------------------------------------------------------------------------------------ the baton

    def _pass_on(self) -> None:
        """Whoever is earliest goes on: a worker, or the network until it sets one free."""
        if self._failed is None:
            self._let_the_network_catch_up()
        if self._failed is not None:  # wake everybody up, one by one, to unwind
            rest = next((r for r in self._runners if not r.done), None)
            if rest is None:
                self._finished.release()
            else:
                rest.hand_over()
            return
        if self._ready:
            _, rank = heapq.heappop(self._ready)
            self._runners[rank].hand_over()
        else:
            self._finished.release()

    def _let_the_network_catch_up(self) -> None:
        while True:
            earliest = self._ready[0][0] if self._ready else math.inf
            event = self.fluid.next_event()
            if event < earliest:
                self.fluid.advance(event)
            elif earliest < math.inf or all(runner.done for runner in self._runners):
                return
            else:
                self._failed = LaconicError(self._deadlock())
                return

    def _deadlock(self) -> str:
        stuck = [f"rank {r.rank} in {r.waits_for.what}" for r in self._runners if r.waits_for is not None]
        ended = [str(r.rank) for r in self._runners if r.done]
        rest = f"; rank {', '.join(ended)} ended already" if ended else ""
        return f"the virtual workers wait for each other for ever: {', '.join(stuck[:8])}{rest}"
