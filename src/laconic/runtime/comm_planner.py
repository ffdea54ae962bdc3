"""Planning from observations of the first iterations: the order in which gradients become ready and, where a schedule
asks for it, the times of layers and messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from heapq import merge
from itertools import accumulate
from operator import itemgetter
from typing import Any, Protocol

import torch

from laconic.cost.explain import explain
from laconic.runtime.broadcast import broadcast_tensors
from laconic.runtime.buckets import PlannedPartition
from laconic.runtime.deferred_step import DeferredStep
from laconic.runtime.forward_gates import ForwardGates
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.layer_timer import LayerTimer, prices_of
from laconic.runtime.partition import Partition
from laconic.runtime.reducer import Reducer
from laconic.runtime.session_interface import Training
from laconic.values.comm_plan import Message
from laconic.values.price import Price
from laconic.values.timing import Timing
from laconic.worker import Communication

_TIMED_ITERATIONS = 6  # iterations before a schedule that measures makes its plan; the first of them only warms up
_DRIFT_CHECK_EVERY = 50  # iterations between checks whether steps take another time than before
_DRIFT = 0.2  # relative change of the step time after which layers and messages are measured again


class Autotuner(Protocol):
    """An object that chooses a strategy while training runs, where the user asked for `auto`."""

    def step_ended(self) -> None:
        """Observe the end of an optimizer step."""
        ...

    def choose(self) -> None:
        """Choose a strategy, after the layers and messages have been measured. All workers call this together."""
        ...


class PlannedTraining(Training, Protocol):
    """A `Training` whose messages a `CommPlanner` plans: its partitions, its reducer and what it defers."""

    deferred_step: DeferredStep
    autotuner: Autotuner | None

    @property
    def partitions(self) -> list[Partition]:
        """The sets of parameters that are governed alike."""
        ...

    @property
    def reducer(self) -> Reducer:
        """What carries the present messages."""
        ...

    def arrange(self) -> None:
        """Make partitions and messages anew from the present plans."""
        ...

    def forward_left(self) -> float:
        """Return the share of a forward pass that is reported to the clock when it has ended."""
        ...


class CommPlanner:
    """The observations from which plans are made. They are rank 0's on all workers, since replicas must agree on every
    message."""

    def __init__(self, session: PlannedTraining) -> None:
        self._session = session
        self.arrival = list(reversed(range(len(session.parameters.dense))))
        self.observed = False
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.prices: dict[str, list[Price | None]] = {}  # by sentence: dense, in halves, compressed
        self.gates: ForwardGates | None = None
        self._measuring: LayerTimer | None = None
        self._passed: set[int] = set()  # parameters whose layers have been entered in this forward pass
        self._entered: list[int] = []  # those of them whose computation the clock does not include yet
        self._last_check: tuple[float, int] | None = None  # the clock and the step of the last check for drift
        self._usual_seconds: float | None = None

    def arranged(self) -> None:
        """Install the gates and timers that the schedules of new partitions need."""
        partitions = self._session.partitions
        schedules = [partition.tiers[0].schedule for partition in partitions]
        if self.gates is None and any(s.finishes_late or s.measures for s in schedules):
            model, trainable = self._session.model, self._session.parameters.trainable
            self.gates = ForwardGates(model, trainable, self._before_module, self._session.deferred_step.settle)
        unknown = any(s.tiers[0].schedule.measures and _sentence(s) not in self.prices for s in partitions)
        if unknown and self._measuring is None:
            self._measuring = LayerTimer(self._session.worker, len(self._session.parameters.trainable))

    def timing(self, partition: Partition) -> Timing | None:
        """Return the measurements for a partition's schedule, or None before they are made."""
        prices = self.prices.get(_sentence(partition)) if self.backward else None
        if prices is None:
            return None
        forward, backward = ([of_all[i] for i in partition.members] for of_all in (self.forward, self.backward))
        tier = partition.tiers[0]
        price, halved, compressed = prices
        assert price is not None
        return Timing(tuple(forward), tuple(backward), price, not tier.architecture.collective, halved, compressed)

    # ------------------------------------------------------------------------------------------ as it runs

    def _before_module(self, which: Sequence[int]) -> None:
        """Handle a gate: the preceding layer has computed, and these parameters are about to be used."""
        session = self._session
        if torch.is_grad_enabled():
            entire_model = len(which) == len(session.parameters.trainable)
            if not self._passed and self._measuring is not None:
                self._measuring.begin()
            self._compute(() if entire_model else which)
            if self._measuring is not None:
                self._measuring.gate(which)
        session.deferred_step.apply(which)

    def _compute(self, entered: Sequence[int]) -> None:
        """Report the layers entered before to the worker's clock as computed; those entered now compute next."""
        worker, parameters = self._session.worker, self._session.parameters
        for i in self._entered:
            worker.computed("forward", *parameters.share(i))
        self._entered = [i for i in entered if i not in self._passed]
        self._passed.update(self._entered)

    def forward_ended(self) -> None:
        """Report that all layers have computed, including those without a gate of their own."""
        if self.gates is None:
            self._session.worker.computed("forward", self._session.forward_left())
            return
        self._session.deferred_step.settle()  # parameters that no gate waits for
        rest = [i for i in range(len(self._session.parameters.trainable)) if i not in self._passed]
        self._compute(rest)
        self._compute(())
        self._passed.clear()
        if self._measuring is not None:
            self._measuring.forward_ended()

    @property
    def times_gradients(self) -> bool:
        """Whether layers are being timed."""
        return self._measuring is not None

    def gradient(self, i: int) -> None:
        """Note that gradient i is ready."""
        if self._measuring is not None:
            self._measuring.gradient(i)

    def backward_ended(self, arrival: Sequence[int]) -> None:
        """After the first backward, plan again from the order in which rank 0's gradients really became ready."""
        if self._measuring is not None:
            self._measuring.backward_ended()
        if not self.observed:
            self.observed = True
            seen = dict.fromkeys(arrival)
            order = [*seen, *(i for i in self.arrival if i not in seen)]
            agreed = self.agreed([float(i) for i in order])
            if (found := [int(i) for i in agreed]) != self.arrival:
                self.arrival = found
                self._session.arrange()

    def step_ended(self) -> None:
        """Plan with the measurements as soon as they are complete; measure again when the duration of steps has
        changed."""
        if self._measuring is not None and self._measuring.iterations >= _TIMED_ITERATIONS:
            forward, backward = self._measuring.medians()
            agreed = self.agreed([*forward, *backward])
            self.forward, self.backward = agreed[: len(forward)], agreed[len(forward) :]
            self._measuring = None
            self._price_and_plan()
        elif self.backward:
            self._check_drift()

    def _check_drift(self) -> None:
        """Start measuring again when steps have become faster or slower than before by more than a fifth."""
        now, steps = self._session.worker.clock_seconds(), self._session.steps
        if self._last_check is None:
            self._last_check = (now, steps)
        elif steps - self._last_check[1] >= _DRIFT_CHECK_EVERY:
            (seconds,) = self.agreed([(now - self._last_check[0]) / (steps - self._last_check[1])])
            self._last_check = (now, steps)
            usual, self._usual_seconds = self._usual_seconds, seconds
            if usual is not None and abs(seconds - usual) > _DRIFT * usual:
                self._usual_seconds = None
                self._measuring = LayerTimer(self._session.worker, len(self._session.parameters.trainable))

    def _price_and_plan(self) -> None:
        session = self._session
        session.deferred_step.settle()
        for partition in session.partitions:
            tier = partition.tiers[0]
            if tier.schedule.measures:
                total = sum(session.parameters.specs[i].nbytes for i in partition.members)
                found = prices_of(tier, session.worker, total, session.parameters.device)
                self.prices[_sentence(partition)] = [
                    None if p is None else Price(*self.agreed(_price_fields(p))) for p in found
                ]
        session.arrange()
        self._last_check = None
        if session.group.rank == 0 and session.worker.rank == 0:
            self._explain()
        if session.autotuner is not None:
            session.autotuner.choose()

    def _explain(self) -> None:
        """Print one line that says what was decided, where a schedule decides for itself."""
        for partition in self._session.partitions:
            timing, schedule = self.timing(partition), partition.tiers[0].schedule
            if timing is not None and schedule.decides:
                plan = next(p.plan for p in self._session.reducer.messages if p.bucket.tiers is partition.tiers)
                summary = explain(plan, partition.own(self.arrival), timing).summary()
                print(f"laconic: {schedule.name}, step {self._session.steps}: {summary}", file=sys.stderr)

    def agreed(self, values: Sequence[float]) -> list[float]:
        """Return rank 0's values on every worker."""
        session = self._session
        tensor = torch.tensor(values, dtype=torch.float64, device=session.parameters.device)
        complete([InFlight(_broadcast(tensor, session))])
        return tensor.tolist()

    # ------------------------------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        prices = {k: [None if p is None else _price_fields(p) for p in found] for k, found in self.prices.items()}
        return {
            "arrival": self.arrival,
            "observed": self.observed,
            "timing": (self.forward, self.backward, prices),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.arrival, self.observed = list(state["arrival"]), state["observed"]
        self.forward, self.backward, prices = state["timing"]
        self.prices = {k: [None if p is None else Price(*p) for p in found] for k, found in prices.items()}


def _sentence(partition: Partition) -> str:
    return str(partition.tiers[0].sentence)


def _price_fields(price: Price) -> list[float]:
    return [price.startup_seconds, price.seconds_per_byte]


def _broadcast(tensor: torch.Tensor, session: PlannedTraining) -> Communication[None]:
    return broadcast_tensors([tensor], [session.group], control=1.0)


def in_order(parts: Sequence[PlannedPartition], arrival: Sequence[int]) -> list[tuple[int, Message]]:
    """Merge the messages of several partitions by their expected readiness, keeping each plan's own order."""
    place = {i: k for k, i in enumerate(arrival)}
    rows = []
    for which, part in enumerate(parts):
        needs = [{*m.after, *(i for i, _, _ in part.plan.carried(m))} for m in part.plan.messages]
        ready = accumulate((max(place[part.members[k]] for k in each) for each in needs), max)
        rows.append([(when, which, m) for when, m in zip(ready, part.plan.messages, strict=True)])
    return [(which, message) for _, which, message in merge(*rows, key=itemgetter(0))]
