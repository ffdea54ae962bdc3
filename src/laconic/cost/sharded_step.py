"""The time of a step of sharded training: weights are gathered a layer ahead, gradients scattered beside backward.

While a module computes, the weights of the next one are gathered, and no others, so that two modules are whole at a
time. What is around all others (embeddings, the output) is the first module: it is gathered first and stays whole until
its own pass is over. Its computing is in two parts, before and after the others. Encoding and decoding take computing's
time. A step ends with the optimizer, which needs all gradients; the next one begins with a gather of new weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cost.lanes import COMPUTE, Task, serve


@dataclass(frozen=True)
class Hop:
    """A message on its lane, with the encoding before and the decoding after it."""

    lane: str
    seconds: float
    overlapped_seconds: float | None = None  # while the worker computes; None: the same
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def coding_seconds(self) -> float:
        return self.encode_seconds + self.decode_seconds


@dataclass(frozen=True)
class ModuleStep:
    """One module in a step: its computing, the gathers of its weights and the hops of its gradients."""

    forward_seconds: float
    backward_seconds: float
    gather: Hop
    again: Hop | None
    scatter: tuple[Hop, ...]

    @property
    def coding_seconds(self) -> float:
        hops = (self.gather, self.again, *self.scatter)
        return sum(0.0 if hop is None else hop.coding_seconds for hop in hops)


@dataclass(frozen=True)
class ShardedStep:
    """The modules of a step in the order of forward, the first around the others; what it computes after them; and the
    optimizer's time on this worker's shards."""

    modules: Sequence[ModuleStep]
    forward_after: float = 0.0
    backward_before: float = 0.0
    optimizer_seconds: float = 0.0

    @property
    def computing_seconds(self) -> float:
        passes = sum(module.forward_seconds + module.backward_seconds for module in self.modules)
        return passes + self.forward_after + self.backward_before + self.optimizer_seconds

    @property
    def coding_seconds(self) -> float:
        return sum(module.coding_seconds for module in self.modules)

    def seconds(self) -> float:
        """Return the time of the whole step."""
        return serve(_Tasks(self).listed).ends[-1]

    def serial_seconds(self) -> float:
        """Return the time of a step in which nothing overlaps: the most that it takes."""
        return sum(task.seconds for task in _Tasks(self).listed)


class _Tasks:
    """The tasks of a step; a task is known by its number."""

    def __init__(self, step: ShardedStep) -> None:
        self.listed: list[Task] = []
        modules = step.modules
        last = self._forward(modules)
        last = self._add(COMPUTE, step.forward_after, [last])
        averaged = self._backward(modules, last, step.backward_before)
        self._add(COMPUTE, step.optimizer_seconds, averaged)

    def _add(self, lane: str, seconds: float, needs: Sequence[int], overlapped: float | None = None) -> int:
        self.listed.append(Task(lane, seconds, tuple(needs), overlapped_seconds=overlapped))
        return len(self.listed) - 1

    def _hop(self, hop: Hop | None, needs: Sequence[int]) -> list[int]:
        """Add a message and its coding; return what ends it. Without a message nothing is to be waited for."""
        if hop is None:
            return list(needs)
        after = [self._add(COMPUTE, hop.encode_seconds, needs)] if hop.encode_seconds else needs
        sent = self._add(hop.lane, hop.seconds, after, hop.overlapped_seconds)
        return [self._add(COMPUTE, hop.decode_seconds, [sent])] if hop.decode_seconds else [sent]

    def _forward(self, modules: Sequence[ModuleStep]) -> int:
        gathered, computed = self._hop(modules[0].gather, []), -1
        for place, module in enumerate(modules):
            before = [computed] if place else []
            # the next gather begins when this module does: after the one before it has computed
            ahead = self._hop(modules[place + 1].gather, before) if place + 1 < len(modules) else []
            computed = self._add(COMPUTE, module.forward_seconds, [*before, *gathered])
            gathered = ahead
        return computed

    def _backward(self, modules: Sequence[ModuleStep], last: int, before: float) -> list[int]:
        """Add the backward pass after task `last`; return the tasks that end the averages."""
        around, *others = modules
        whole = self._hop(around.again, [last])
        gathered = self._hop(others[-1].again, [last]) if others else []
        computed = self._add(COMPUTE, before, [last, *whole])
        averaged: list[int] = []
        for place in reversed(range(len(others))):
            ahead = self._hop(others[place - 1].again, [computed]) if place else []
            computed = self._add(COMPUTE, others[place].backward_seconds, [computed, *gathered])
            averaged += self._averaged(others[place], computed)
            gathered = ahead
        computed = self._add(COMPUTE, around.backward_seconds, [computed])
        return [*averaged, *self._averaged(around, computed)]

    def _averaged(self, module: ModuleStep, computed: int) -> list[int]:
        after = [computed]
        for hop in module.scatter:
            after = self._hop(hop, after)
        return after
