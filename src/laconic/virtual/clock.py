"""The virtual clock: workers as threads that pass one baton, in the order of their virtual times.

Only the holder of the baton runs. It keeps it until it must wait for an operation; then whoever has the earliest time
goes on, or, if something else is earlier (the network, a worker's birth or death), that happens first. So a run depends
on nothing but its inputs. A worker never gives the baton away inside an autograd hook, because waiting never happens
there.
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
    """Something under way: unfinished until the network says when it ended, or failed."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.ended_seconds: float | None = None
        self.error: Exception | None = None
        self.waiting: list[Runner] = []
        self.then: list[Callable[[float], None]] = []  # told when it ended, well or not


class Gone(BaseException):
    """Unwinds a worker whose life is over."""


class Stopped(BaseException):
    """Unwinds the other workers after one has failed."""


class Runner:
    """One life of one worker: a thread of control with its own time."""

    def __init__(self, clock: Clock, rank: int, lives: Sequence[Life], body: Callable[[int], Any]) -> None:
        self.clock, self.rank, self.life, self.later = clock, rank, lives[0], lives[1:]
        self.seconds = self.life.begin_seconds
        self.result: Any = None
        self.error: BaseException | None = None
        self.waits_for: Operation | None = None
        self.done = self.doomed = False
        self._body = body
        self._baton = threading.Lock()  # held while somebody else runs
        self._baton.acquire()
        self.thread = threading.Thread(target=self._run, name=f"laconic-virtual-{rank}", daemon=True)

    def _run(self) -> None:
        self._baton.acquire()
        try:
            self.clock.entered(self)
            self.result = self._body(self.rank)
        except BaseException as error:
            self.error = error
        self.done = True
        self.clock.left(self)

    def hand_over(self) -> None:
        self._baton.release()

    def pause(self) -> None:
        self._baton.acquire()
        self.clock.entered(self)

    def pass_time(self, seconds: float, step_ends: bool = False) -> None:
        """The worker computes for so long; its life may end on the way, or when it has finished its step."""
        self.clock.check()
        self.seconds += seconds
        if self.seconds >= self.life.end_seconds and (step_ends or not self.life.says_goodbye):
            if not self.life.says_goodbye:
                self.seconds = self.life.end_seconds
            raise Gone


class Clock:
    """Runs bodies side by side in virtual time. `gone` is told of a worker whose life ended before its body did."""

    def __init__(
        self,
        fluid: Fluid,
        switched: Callable[[int], None] = lambda rank: None,
        gone: Callable[[Runner], None] = lambda runner: None,
    ) -> None:
        self.fluid = fluid
        self._switched, self._gone = switched, gone
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
        """Run each worker's lives to their ends; the first error of any ends all and is raised here.

        Whoever would come when all others have ended does not come. A result is that of a worker's last life.
        """
        self._body = body
        for rank, of_one in enumerate(lives):
            if of_one:
                self._begin(rank, of_one)
        self._pass_on()
        try:
            self._finished.acquire()
        except BaseException as error:  # Ctrl-C: whoever is at work finds out when it computes or waits next
            self._failed = self._failed or error
            self._finished.acquire()
        for runner in self._runners:
            runner.thread.join()
        if self._failed is not None:
            raise self._failed
        return [self._by_rank[rank].result if rank in self._by_rank else None for rank in range(len(lives))]

    @property
    def survivors(self) -> list[int]:
        """Whose body came to its end."""
        return [rank for rank, runner in self._by_rank.items() if runner.error is None]

    def drain(self) -> None:
        """All workers have ended: whatever is still on its way arrives."""
        while (flows := self.fluid.next_event()) < math.inf:
            self.fluid.advance(flows)

    def check(self) -> None:
        """Somebody has failed, so everybody ends."""
        if self._failed is not None:
            raise Stopped

    def runner(self, rank: int) -> Runner:
        """The worker's present life."""
        return self._by_rank[rank]

    @property
    def seconds(self) -> float:
        """When the last worker ended."""
        return max((runner.seconds for runner in self._by_rank.values()), default=0.0)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Let something happen at this time."""
        heapq.heappush(self._events, (seconds, next(self._serial), act))

    # ------------------------------------------------------------------------------------------ from workers

    def wait(self, runner: Runner, operation: Operation) -> None:
        """Until the operation has ended; the worker's time is then not before that."""
        if operation.ended_seconds is None:
            operation.waiting.append(runner)
            runner.waits_for = operation
            self._pass_on()
            runner.pause()
        self.check()
        assert operation.ended_seconds is not None
        runner.pass_time(max(operation.ended_seconds - runner.seconds, 0.0))
        if operation.error is not None:
            raise operation.error

    def end(self, operation: Operation, seconds: float, error: Exception | None = None) -> None:
        """The network (or whoever carries it out) says when it ended; what has ended before stays as it is."""
        if operation.ended_seconds is not None:
            return
        operation.ended_seconds, operation.error = seconds, error
        for runner in operation.waiting:
            runner.waits_for = None
            self._make_ready(runner, max(runner.seconds, seconds))
        operation.waiting.clear()
        for act in operation.then:
            act(seconds)

    def entered(self, runner: Runner) -> None:
        self._switched(runner.rank)
        self.check()
        if runner.doomed:
            raise Gone

    def left(self, runner: Runner) -> None:
        self._alive -= 1
        if isinstance(runner.error, Gone):
            self._gone(runner)
            if runner.later:  # not before this life has ended, whatever was planned
                begin = max(runner.later[0].begin_seconds, runner.seconds)
                rest = [replace(runner.later[0], begin_seconds=begin), *runner.later[1:]]
                self.at(begin, lambda: self._begin(runner.rank, rest))
        elif runner.error is not None and not isinstance(runner.error, Stopped) and self._failed is None:
            self._failed = runner.error
        self._pass_on()

    # ------------------------------------------------------------------------------------------ births and deaths

    def _begin(self, rank: int, lives: Sequence[Life]) -> None:
        runner = self._by_rank[rank] = Runner(self, rank, lives, self._body)
        self._runners.append(runner)
        self._alive += 1
        runner.thread.start()
        self._make_ready(runner, runner.life.begin_seconds)
        if math.isfinite(runner.life.end_seconds) and not runner.life.says_goodbye:
            self.at(runner.life.end_seconds, lambda: self._doom(runner))

    def _doom(self, runner: Runner) -> None:
        """Its time has come while it waits: wake it up to unwind. If it is busy, it finds out by itself."""
        if runner.waits_for is not None:
            runner.waits_for.waiting.remove(runner)
            runner.waits_for = None
            runner.doomed, runner.seconds = True, runner.life.end_seconds
            self._make_ready(runner, runner.seconds)

    def _make_ready(self, runner: Runner, seconds: float) -> None:
        heapq.heappush(self._ready, (seconds, runner.rank, next(self._serial), runner))

    # ------------------------------------------------------------------------------------------ the baton

    def _pass_on(self) -> None:
        """Whoever is earliest goes on: a worker, or the world around them until it sets one free."""
        if self._failed is None:
            self._let_the_world_catch_up()
        if self._failed is not None:  # wake everybody up, one by one, to unwind
            rest = next((r for r in self._runners if not r.done), None)
            if rest is None:
                self._finished.release()
            else:
                rest.hand_over()
            return
        if self._ready:
            heapq.heappop(self._ready)[-1].hand_over()
        else:
            self._finished.release()

    def _let_the_world_catch_up(self) -> None:
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
        there = self._by_rank.values()
        stuck = [f"rank {r.rank} in {r.waits_for.what}" for r in there if r.waits_for is not None]
        ended = [str(r.rank) for r in there if r.done]
        rest = f"; rank {', '.join(ended)} ended already" if ended else ""
        return f"the virtual workers wait for each other for ever: {', '.join(stuck[:8])}{rest}"
