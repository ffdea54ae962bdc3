"""Orders of tasks, and what follows from them: which device holds what, versions of weights, memory, messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from laconic.parallel.pipeline.task import Op, Task


@dataclass(frozen=True)
class Orders:
    """What each device computes, in order; `Pipeline` is one that was verified.

    - `name`: what it is called.
    - `orders`: the tasks of each device.
    - `sizes`: the size of each microbatch, where they are unequal, as a multiple of a usual one.
    - `stashes`: whether a backward pass uses the weights of its forward pass, although they were updated between them.
    """

    name: str
    orders: tuple[tuple[Task, ...], ...]
    sizes: tuple[float, ...] = ()
    stashes: bool = False

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.orders)

    @cached_property
    def stages(self) -> int:
        """The number of stages."""
        return 1 + max((task.stage for order in self.orders for task in order), default=-1)

    @cached_property
    def microbatches(self) -> int:
        """The number of microbatches."""
        return 1 + max((task.microbatch for order in self.orders for task in order), default=-1)

    def size_of(self, microbatch: int) -> float:
        """Return the size of a microbatch, as a multiple of a usual one."""
        return self.sizes[microbatch] if self.sizes else 1.0

    @cached_property
    def device_of(self) -> dict[tuple[int, int], int]:
        """The device of each stage and microbatch."""
        return {
            (task.stage, task.microbatch): device
            for device, order in enumerate(self.orders)
            for task in order
            if task.op is Op.FORWARD
        }

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """The devices that hold each stage."""
        found: list[set[int]] = [set() for _ in range(self.stages)]
        for (stage, _), device in self.device_of.items():
            found[stage].add(device)
        return tuple(tuple(sorted(devices)) for devices in found)

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the stages that a device holds."""
        return tuple(stage for stage, devices in enumerate(self.holders) if device in devices)

    @cached_property
    def _split(self) -> frozenset[tuple[int, int]]:
        return frozenset(task[1:] for order in self.orders for task in order if task.op is Op.INPUT)

    def sender_of_gradient(self, stage: int, microbatch: int) -> Task:
        """Return the task that computes the gradient which a stage's backward pass starts from."""
        split = (stage + 1, microbatch) in self._split
        return Task(Op.INPUT if split else Op.BACKWARD, stage + 1, microbatch)

    @cached_property
    def peak_in_flight(self) -> tuple[float, ...]:
        """How many microbatches of activations each device holds at most, those of its several stages together."""
        return tuple(self._peak(order) for order in self.orders)

    def _peak(self, order: Sequence[Task]) -> float:
        held = peak = 0.0
        for task in order:
            if task.op is Op.FORWARD:
                held += self.size_of(task.microbatch)
                peak = max(peak, held)
            elif task.op in (Op.BACKWARD, Op.WEIGHT):
                held -= self.size_of(task.microbatch)
        return peak

    @cached_property
    def versions(self) -> dict[tuple[int, int], int]:
        """By how many updates of its device each stage had changed when a microbatch passed forward."""
        found: dict[tuple[int, int], int] = {}
        for order in self.orders:
            updates = [0] * self.stages
            for task in order:
                if task.op is Op.UPDATE:
                    updates[task.stage] += 1
                elif task.op is Op.FORWARD:
                    found[task.stage, task.microbatch] = updates[task.stage]
        return found

    @cached_property
    def flushes(self) -> bool:
        """Whether each stage is updated once, after all microbatches: a synchronous step."""
        return all(len(sizes) == 1 for sizes in self.update_sizes)

    @cached_property
    def update_sizes(self) -> tuple[tuple[float, ...], ...]:
        """How much each update of a stage sums, in usual microbatches of all devices that hold the stage."""
        found: list[list[float]] = [[] for _ in range(self.stages)]
        for order in self.orders:
            summed, number = [0.0] * self.stages, [0] * self.stages
            for task in order:
                stage = task.stage
                if task.op in (Op.BACKWARD, Op.WEIGHT):
                    summed[stage] += self.size_of(task.microbatch)
                elif task.op is Op.UPDATE:
                    found[stage] += [0.0] * (number[stage] + 1 - len(found[stage]))
                    found[stage][number[stage]] += summed[stage]
                    summed[stage], number[stage] = 0.0, number[stage] + 1
        return tuple(map(tuple, found))

    @cached_property
    def peak_versions(self) -> tuple[int, ...]:
        """How many versions of a stage's weights its device holds at most, the newest among them."""
        found = [1] * self.stages
        for order in self.orders:
            newest, used = [0] * self.stages, [dict[int, int]() for _ in range(self.stages)]
            for task in order:
                stage = task.stage
                if task.op is Op.UPDATE:
                    newest[stage] += 1
                elif task.op is Op.FORWARD:
                    used[stage][task.microbatch] = newest[stage]
                elif task.op in (Op.BACKWARD, Op.WEIGHT):
                    del used[stage][task.microbatch]
                found[stage] = max(found[stage], len({newest[stage], *used[stage].values()}))
        return tuple(found)

    def needed(self, task: Task) -> Task | None:
        """Return the task of another stage whose result a task needs, if there is one."""
        if task.op is Op.FORWARD and task.stage > 0:
            return Task(Op.FORWARD, task.stage - 1, task.microbatch)
        if task.op in (Op.BACKWARD, Op.INPUT) and task.stage < self.stages - 1:
            return self.sender_of_gradient(task.stage, task.microbatch)
        return None

    def crossings(self) -> Iterable[tuple[Task, int, int]]:
        """Return what is sent: the task whose result travels, from which device, to which."""
        for (stage, microbatch), device in self.device_of.items():
            other = self.device_of.get((stage + 1, microbatch), device)
            if other != device:
                yield Task(Op.FORWARD, stage, microbatch), device, other
                yield self.sender_of_gradient(stage, microbatch), other, device
