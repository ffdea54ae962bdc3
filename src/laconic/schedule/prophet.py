"""Prophet: gradients come in bursts, and a block is what the network carries until the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from laconic.claims import CoversOnce
from laconic.compression.base import TensorSpec
from laconic.registry import knob, technique
from laconic.schedule.base import Schedule
from laconic.schedule.bytescheduler import ByteScheduler
from laconic.schedule.plan import CommPlan, Message, of_one_dtype, urgencies
from laconic.schedule.timing import Timing


@dataclass(frozen=True)
class Block:
    """Tensors that leave together, the most urgent first, when a burst is complete."""

    tensors: tuple[int, ...]
    burst: tuple[int, ...]
    room_bytes: float  # what the network carries before the next burst; infinite after the last one


@technique("prophet", paper="Zhang et al., ICPP 2021", claims=[CoversOnce()])
@dataclass(frozen=True)
class Prophet(Schedule):
    """When a burst of gradients is complete, the most urgent ones leave as one block that the network carries before
    the next burst; what does not fit competes in the next block. After backward the rest follows by priority.

    So the link is never idle and nothing delays what is more urgent. Until iterations were timed it is `bytescheduler`.
    Reading chosen: as in the abstract and the public code; a gap above twice the mean ends a burst.
    """

    credit: int = knob(4_000_000, low=0, doc="elements handed over at a time when backward is over")
    late: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    prefers: ClassVar[Mapping[str, str]] = {"architecture": "parameter_server"}

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        if timing is None:
            return ByteScheduler(credit=self.credit).plan(tensors, arrival)
        urgent = urgencies(arrival)
        buckets: list[tuple[int, ...]] = []
        messages: list[Message] = []
        for block in blocks(tensors, arrival, timing):
            last = block.room_bytes == float("inf")
            for bucket in of_one_dtype(tensors, [[i] for i in block.tensors] if last else [block.tensors]):
                numel = sum(tensors[i].numel for i in bucket)
                messages.append(Message(len(buckets), 0, numel, block.burst, min(urgent[i] for i in bucket)))
                buckets.append(bucket)
        widest = max(spec.dtype.itemsize for spec in tensors)
        return CommPlan(tuple(tensors), tuple(buckets), tuple(messages), self.credit * widest, gated=True)


def bursts(arrival: Sequence[int], backward: Sequence[float]) -> list[list[int]]:
    """Gradients by the pauses between them: a gap of more than twice the mean ends a burst."""
    gaps = [backward[i] for i in arrival[1:]]
    limit = 2 * sum(gaps) / len(gaps) if gaps else 0.0
    found = [[i] for i in arrival[:1]]
    for i, gap in zip(arrival[1:], gaps, strict=True):
        if gap > limit:
            found.append([])
        found[-1].append(i)
    return found


def blocks(tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing) -> list[Block]:
    """What leaves after each burst; the last block has all that is left."""
    urgent = urgencies(arrival)
    seen = bursts(arrival, timing.backward)
    waiting: list[int] = []
    made: list[Block] = []
    for burst, following in zip(seen, [*seen[1:], []], strict=True):
        waiting = sorted([*waiting, *burst], key=lambda i: urgent[i])
        interval = sum(timing.backward[i] for i in following) if following else float("inf")
        room = interval / timing.price.seconds_per_byte if timing.price.seconds_per_byte else float("inf")
        taken, held = 0, 0.0
        while taken < len(waiting) and (taken == 0 or held + tensors[waiting[taken]].nbytes <= room):
            held += tensors[waiting[taken]].nbytes
            taken += 1
        made.append(Block(tuple(waiting[:taken]), tuple(burst), room))
        waiting = waiting[taken:]
    return made
