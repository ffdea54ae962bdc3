"""`CommPlan`: the messages of one iteration as a value that cannot be wrong.

Tensors that are merged lie side by side in a *bucket*; a *message* is a range of a bucket, so that a bucket is sent
whole or in pieces. A schedule decides on both, on the order in which messages are launched and on what they wait for;
an engine carries the plan out. The constructor proves that every element of every tensor is sent exactly once.

A deadlock is impossible: a message needs gradients of its own iteration alone, which all exist when backward is over,
and a layer of the next forward pass needs messages alone. Reading too early is impossible as well: a gate is derived
from the messages that carry some of its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from laconic.errors import LaconicError
from laconic.values.tensor_spec import TensorSpec

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Message:
    """A range of a bucket's elements. It is launched when the gradients in it, and those of the tensors in `after`,
    exist."""

    bucket: int
    start: int
    stop: int
    after: tuple[int, ...] = ()
    urgency: int = 0  # how soon the next forward pass needs it; smaller is sooner


@dataclass(frozen=True)
class CommPlan:
    """The messages of an iteration, in the order in which every worker launches them.

    With a credit, a worker that need not agree with others on an order (at a parameter server) sends the most urgent
    message first, and hands over no more than `credit_bytes` at a time beside the message in flight.
    """

    tensors: tuple[TensorSpec, ...]
    buckets: Groups
    messages: tuple[Message, ...]
    credit_bytes: int | None = None
    gated: bool = False  # layers of the next forward pass wait for their messages, not the end of backward for all
    halves: bool = False  # an all-reduce is a reduce-scatter, then an all-gather after backward or the step
    postponed: tuple[int, ...] = ()  # tensors whose gradients are computed last, in this order
    plain: frozenset[int] = field(default_factory=frozenset)  # tensors that are not worth compressing

    def __post_init__(self) -> None:
        carried = sorted(i for bucket in self.buckets for i in bucket)
        if carried != list(range(len(self.tensors))):
            raise LaconicError(
                f"a plan must carry each of its {len(self.tensors)} tensors exactly once, this one carries {carried}"
            )
        for bucket in self.buckets:
            dtypes = {self.tensors[i].dtype for i in bucket}
            if len(dtypes) != 1:
                raise LaconicError(f"the tensors of a message share one dtype, not {sorted(map(str, dtypes))}")
        self._check_ranges()
        known = range(len(self.tensors))
        awaited = {id(m.after): m.after for m in self.messages}  # many messages may share one tuple
        mentioned = {*self.postponed, *self.plain}.union(*awaited.values())
        unknown = sorted(i for i in mentioned if i not in known)
        if unknown:
            raise LaconicError(f"a plan of {len(known)} tensors mentions tensor {unknown[0]}")
        if self.credit_bytes is not None and self.credit_bytes < 0:
            raise LaconicError(f"a credit is not negative: {self.credit_bytes} bytes")

    def _check_ranges(self) -> None:
        ranges: list[list[tuple[int, int]]] = [[] for _ in self.buckets]
        for message in self.messages:
            if not 0 <= message.bucket < len(self.buckets):
                raise LaconicError(f"there is no bucket {message.bucket} in a plan of {len(self.buckets)}")
            ranges[message.bucket].append((message.start, message.stop))
        for number, found in enumerate(ranges):
            whole = self._offsets[number][-1]
            cuts = [0, *(stop for _, stop in sorted(found))]
            if cuts[-1] != whole or len(found) == 0 or [start for start, _ in sorted(found)] != cuts[:-1]:
                raise LaconicError(f"bucket {number} has {whole} elements, its messages carry {sorted(found)}")

    @cached_property
    def _offsets(self) -> list[list[int]]:
        """The offset at which each tensor begins in its bucket, and the end of the last one."""
        return [list(accumulate((self.tensors[i].numel for i in bucket), initial=0)) for bucket in self.buckets]

    def carried(self, message: Message) -> tuple[tuple[int, int, int], ...]:
        """Return the tensors of which a message carries a part, each with the range of the bucket that it carries."""
        places = zip(self.buckets[message.bucket], pairwise(self._offsets[message.bucket]), strict=True)
        return tuple(
            (i, max(begin, message.start), min(end, message.stop))
            for i, (begin, end) in places
            if (begin < message.stop and message.start < end) or begin == end == message.start
        )

    def nbytes(self, message: Message) -> int:
        return (message.stop - message.start) * self.tensors[self.buckets[message.bucket][0]].dtype.itemsize

    @property
    def message_bytes(self) -> tuple[int, ...]:
        return tuple(map(self.nbytes, self.messages))


def urgencies(arrival: Sequence[int]) -> dict[int, int]:
    """Return how soon the next forward pass needs each tensor: the gradient that backward yields last is needed
    first."""
    return {i: place for place, i in enumerate(reversed(arrival))}


def of_one_dtype(tensors: Sequence[TensorSpec], groups: Iterable[Sequence[int]]) -> Groups:
    """Divide the groups whose tensors cannot share a buffer, because their types differ, by type."""
    found: list[tuple[int, ...]] = []
    for group in groups:
        by_dtype: dict[object, list[int]] = {}
        for i in group:
            by_dtype.setdefault(tensors[i].dtype, []).append(i)
        found += map(tuple, by_dtype.values())
    return tuple(found)


def whole(buckets: Groups, tensors: Sequence[TensorSpec], arrival: Sequence[int]) -> tuple[Message, ...]:
    """Return one message for each bucket."""
    return in_pieces(buckets, tensors, arrival, None)


def in_pieces(
    buckets: Groups, tensors: Sequence[TensorSpec], arrival: Sequence[int], elements: int | None
) -> tuple[Message, ...]:
    """Return messages of at most `elements` elements (None: whole buckets), bucket after bucket, each as urgent as the
    most urgent tensor it carries."""
    urgent = urgencies(arrival)
    messages: list[Message] = []
    for number, bucket in enumerate(buckets):
        ends = list(accumulate(tensors[i].numel for i in bucket))
        step = max(1, elements or ends[-1])
        place, soonest = 0, [urgent[i] for i in bucket]
        for start in range(0, max(1, ends[-1]), step):
            stop = min(start + step, ends[-1])
            while place + 1 < len(ends) and ends[place] <= start:
                place += 1
            last = place
            while last + 1 < len(ends) and ends[last] < stop:
                last += 1
            messages.append(Message(number, start, stop, urgency=min(soonest[place : last + 1])))
    return tuple(messages)
