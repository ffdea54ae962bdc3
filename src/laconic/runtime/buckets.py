"""Buckets: flat storage into which gradients are copied, and the messages that carry ranges of it.

Each bucket is laid out as [compressible tensors | dense tensors | control], and is sent as one message or in pieces.
Either part begins with the tensors that outer tiers compress.
When a tensor's messages have arrived, `p.grad` *is* its place in the bucket, so nothing is copied back.

The control part is sent with the last message: for each parameter, whether any worker had a gradient for it. So a
parameter unused on one rank gets the others' average, one unused everywhere keeps no gradient, and everyone decides
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from laconic.runtime.in_flight import InFlight
from laconic.runtime.spans import Span
from laconic.runtime.tier_shards import crosses_in_shards
from laconic.runtime.tiers import Tier
from laconic.values.comm_plan import CommPlan, Message
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Priority

_SMALL = 1 << 16
"""The elements of a CPU's gradient up to which the calls cost more than the copies; it also stays in a cache."""


@dataclass(frozen=True)
class PlannedPartition:
    """A partition's plan, the parameters that the plan numbers, and the tiers its messages cross."""

    plan: CommPlan
    members: Sequence[int]
    tiers: Sequence[Tier]


class Bucket:
    """The storage of one bucket and the place of each parameter in it."""

    def __init__(
        self, part: PlannedPartition, bucket: int, specs: Sequence[TensorSpec], parameters: Sequence[nn.Parameter]
    ) -> None:
        self.tiers = tiers = part.tiers
        inside = [part.members[k] for k in part.plan.buckets[bucket]]
        plain = {part.members[k] for k in part.plan.plain}
        accepted = [[i for i in inside if t.compressor.accepts(specs[i]) and i not in plain] for t in tiers]
        alike = [set(some) for some in accepted]
        self.members = sorted(inside, key=lambda i: [i not in some for some in alike])
        self.compressed_by = [[i for i in self.members if i in some] for some in alike]
        self.compressed, self.dense = self.compressed_by[0], [i for i in self.members if i not in alike[0]]
        self.specs = {i: specs[i] for i in self.members}
        ends = list(accumulate((specs[i].numel for i in self.members), initial=0))
        self.ranges = [(i, a, b) for i, (a, b) in zip(self.members, pairwise(ends), strict=True)]
        self.dense_end, self.control_numel = ends[-1], len(parameters)
        self.skipped: frozenset[int] = frozenset()  # parameters of which nothing is sent in this pass
        self._parameters = {i: parameters[i] for i in self.members}
        self.compressed_specs = tuple(specs[i] for i in self.compressed)
        self.compressed_end = ends[len(self.compressed)]
        on_gpu = any(parameters[i].is_cuda for i in self.members)
        self._long = {i for i in self.members if not on_gpu and specs[i].numel > _SMALL}  # copied as soon as they come
        self._waiting: list[tuple[int, float]] = []  # parameters, with factors, whose gradients are not copied yet

    @cached_property
    def storage(self) -> Tensor:
        """The flat buffer. It is allocated when a gradient is first sent: rules that only average parameters never need
        it."""
        first = self._parameters[self.members[0]]
        return torch.zeros(self.dense_end + self.control_numel, dtype=first.dtype, device=first.device)

    @cached_property
    def places(self) -> dict[int, Tensor]:
        """The part of the storage that belongs to each parameter, in the parameter's shape."""
        lengths = [p.numel() for p in self._parameters.values()]
        parts = self.storage[: self.dense_end].split(lengths)
        return {i: _shaped_like(part, p) for part, (i, p) in zip(parts, self._parameters.items(), strict=True)}

    @cached_property
    def compressed_part(self) -> Tensor:
        """The part of the storage in which the innermost tier's compressible tensors lie one behind another."""
        return self.storage[: self.compressed_end]

    def put(self, i: int, factor: float) -> None:
        """Put a parameter's gradient, times a factor, in its place; where calls cost more than copies, with the others
        that have arrived by the time a message is sent."""
        if i not in self._long:
            self._waiting.append((i, factor))
        elif (gradient := self._gradient(i)) is not None:
            self._copy([self.places[i]], [gradient], factor)

    def fill(self) -> None:
        """Copy what was put, in a few calls."""
        found: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        for i, factor in self._waiting:
            if (gradient := self._gradient(i)) is not None:
                places, gradients = found.setdefault(factor, ([], []))
                places.append(self.places[i])
                gradients.append(gradient)
        self._waiting.clear()
        for factor, (places, gradients) in found.items():
            self._copy(places, gradients, factor)

    def _copy(self, places: list[Tensor], gradients: list[Tensor], factor: float) -> None:
        """Copy gradients, times a factor, to their places: on a GPU in the fewest launches, on a CPU in one pass."""
        if factor == 1 or self.storage.is_cuda:
            torch._foreach_copy_(places, gradients)
            if factor != 1:
                torch._foreach_mul_(places, factor)
            return
        number = _number(factor, self.storage.dtype)
        for place, gradient in zip(places, gradients, strict=True):
            torch.mul(gradient, number, out=place)

    def _gradient(self, i: int) -> Tensor | None:
        """Return a parameter's gradient as numbers to be copied; where it has none, set its place to zero."""
        gradient = self._parameters[i].grad
        if gradient is None:
            self.places[i].zero_()
            return None
        if gradient.requires_grad:
            gradient = gradient.detach()
        return gradient if gradient.layout == torch.strided else gradient.to_dense()

    def reset(self) -> None:
        """Prepare for the next pass, whatever became of the last one."""
        self.skipped = frozenset()
        self._waiting.clear()

    @cached_property
    def control(self) -> Tensor:
        return self.storage[self.dense_end :]

    @property
    def cuttable(self) -> bool:
        """Whether the bucket may be sent in pieces: compressors, in any tier, work on whole tensors."""
        return not any(self.compressed_by)


@dataclass(eq=False)
class BucketMessage:
    """A planned message during execution: a range of a bucket's storage, or all of it."""

    bucket: Bucket
    ranges: list[tuple[int, int, int]]  # (parameter, begin, end): the part of the storage it carries
    awaited: frozenset[int]
    urgency: int
    number: int | None  # its number, where its bucket is sent in pieces
    plan: CommPlan
    missing: int = 0  # how many of the awaited gradients have not arrived in this pass
    in_flight: InFlight | None = None
    _parts: dict[bool, list[Tensor]] = field(default_factory=dict)
    _shards: dict[tuple[tuple[int, ...], bool], list[tuple[list[Tensor], Span]] | None] = field(default_factory=dict)

    @cached_property
    def carried(self) -> list[int]:
        return [i for i, _, _ in self.ranges]

    def dense_parts(self, compressed: list[int], with_control: bool) -> list[Tensor]:
        """Return the slices of the storage that this message sums, as few as possible, with the control part where it
        is the last message."""
        usual = not self.bucket.skipped and compressed is self.bucket.compressed_by[0]
        if usual and with_control in self._parts:
            return self._parts[with_control]
        end, skipped = self.bucket.dense_end, self.bucket.skipped
        ranges = [(a, b) for i, a, b in self.ranges if i not in compressed and i not in skipped]
        joined = _joined([*ranges, (end, end + self.bucket.control_numel)] if with_control else ranges)
        parts = [self.bucket.storage[a:b] for a, b in joined] or [self.bucket.storage[:0]]
        if usual:
            self._parts[with_control] = parts
        return parts

    def shards(self, which: tuple[int, ...], with_control: bool) -> list[tuple[list[Tensor], Span]] | None:
        """Return the slices of the storage that cross these of the bucket's tiers in shards, as spans; None where the
        message crosses them as a whole."""
        if (which, with_control) not in self._shards:
            tiers, spans = [self.bucket.tiers[k] for k in which], self._spans(which, with_control)
            specs = [self.bucket.specs[i] for i in self.carried]
            crosses = crosses_in_shards(tiers, [span for _, span in spans], specs)
            self._shards[which, with_control] = spans if crosses else None
        return self._shards[which, with_control]

    def _spans(self, which: tuple[int, ...], with_control: bool) -> list[tuple[list[Tensor], Span]]:
        bucket, dense = self.bucket, (False,) * len(which)
        ranges: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
        carried: dict[tuple[bool, ...], list[TensorSpec]] = {}
        for i, a, b in self.ranges:
            alike = tuple(i in bucket.compressed_by[k] for k in which)
            ranges.setdefault(alike, []).append((a, b))
            carried.setdefault(alike, []).append(bucket.specs[i])
        control = bucket.control_numel if with_control else 0
        if control:
            ranges.setdefault(dense, []).append((bucket.dense_end, bucket.dense_end + control))
        found = []
        for alike, parts in ranges.items():
            specs = tuple(carried[alike]) if any(alike[1:]) else ()
            span = Span(sum(b - a for a, b in parts), alike, specs, control if alike == dense else 0)
            if span.numel:
                found.append(([bucket.storage[a:b] for a, b in _joined(parts)], span))
        return found

    @cached_property
    def priority(self) -> Priority | None:
        credit = self.plan.credit_bytes
        return None if credit is None else Priority(self.urgency, credit)


def messages_of(
    parts: Sequence[PlannedPartition],
    order: Sequence[tuple[int, Message]],
    specs: Sequence[TensorSpec],
    parameters: Sequence[nn.Parameter],
) -> list[BucketMessage]:
    """Return the messages in order. A bucket in which something is compressed is sent as one, in the place of its last
    message."""
    buckets: dict[tuple[int, int], Bucket] = {}
    found: dict[Bucket | int, BucketMessage] = {}
    for number, (which, message) in enumerate(order):
        part, key = parts[which], (which, message.bucket)
        if key not in buckets:
            buckets[key] = Bucket(part, message.bucket, specs, parameters)
        bucket, plan = buckets[key], part.plan
        ranges = [(part.members[k], a, b) for k, a, b in plan.carried(message)]
        awaited = {*(part.members[k] for k in message.after), *(i for i, _, _ in ranges)}
        cut = message.stop - message.start < bucket.dense_end
        piece = BucketMessage(bucket, ranges, frozenset(awaited), message.urgency, number if cut else None, plan)
        if cut and not bucket.cuttable:
            before = found.pop(bucket, piece)
            piece.number, piece.urgency = None, min(before.urgency, piece.urgency)
            piece.awaited |= before.awaited
        if not bucket.cuttable:
            piece.ranges = bucket.ranges
        found[number if piece.number is not None else bucket] = piece
    return list(found.values())


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges with those that follow each other made one."""
    joined: list[tuple[int, int]] = []
    for a, b in ranges:
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return joined


@cache
def _number(factor: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a tensor without dimensions, which torch multiplies by in less time than by a Python float;
    least where it has the other operand's type. Shorter types would round it."""
    return torch.tensor(factor, dtype=dtype if dtype == torch.float32 else torch.float64)


def _shaped_like(flat: Tensor, parameter: Tensor) -> Tensor:
    """Return a view with the parameter's own strides where they are a permutation of contiguous ones, as autograd
    expects."""
    strides: tuple[int, ...] = parameter.stride()
    expected = 1
    for d in sorted(range(parameter.dim()), key=lambda d: (strides[d], -d)):
        if parameter.size(d) != 1 and strides[d] != expected:
            return flat.view(parameter.shape)
        expected *= parameter.size(d)
    return flat.as_strided(parameter.shape, strides, flat.storage_offset())
