"""Gradients out, averages in: carries `CommPlan`s out while backward runs.

Each bucket has one flat buffer, laid out as [compressible tensors | dense tensors | control], and travels as one
message or in pieces. A gradient is copied into its place when it is ready; a message whose gradients are all there
departs at once if all before it have, and what is left departs at the end of backward. When a tensor's messages have
arrived, `p.grad` *is* its place in the buffer, so nothing is copied back.

The control part rides on the last message: for each parameter, whether any worker had a gradient for it. So a parameter
unused on one rank gets the others' average, one unused everywhere keeps no gradient, and everyone decides alike.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from laconic.errors import ContractError
from laconic.runtime.in_flight import Departed, journey, side_by_side
from laconic.runtime.multi_model_order import Turns
from laconic.runtime.tiers import Tier
from laconic.values.comm_plan import CommPlan, Message
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Priority, Reduce


@dataclass(frozen=True)
class Part:
    """A section's plan, the parameters that it numbers, and the tiers its messages cross."""

    plan: CommPlan
    members: Sequence[int]
    tiers: Sequence[Tier]


class Buffer:
    """One bucket's storage and the parameters' places in it."""

    def __init__(
        self, part: Part, bucket: int, specs: Sequence[TensorSpec], parameters: Sequence[nn.Parameter]
    ) -> None:
        self.tiers = tiers = part.tiers
        inside = [part.members[k] for k in part.plan.buckets[bucket]]
        plain = {part.members[k] for k in part.plan.plain}
        taken = [[i for i in inside if t.compressor.accepts(specs[i]) and i not in plain] for t in tiers]
        self.compressed, self.dense = taken[0], [i for i in inside if i not in set(taken[0])]
        self.members = [*self.compressed, *self.dense]
        self.compressed_by = [[i for i in self.members if i in set(some)] for some in taken]
        ends = list(accumulate((specs[i].numel for i in self.members), initial=0))
        self.ranges = [(i, a, b) for i, (a, b) in zip(self.members, pairwise(ends), strict=True)]
        self.dense_end, self.control_numel = ends[-1], len(parameters)
        self.skipped: frozenset[int] = frozenset()  # of which nothing travels in this pass
        self._parameters = {i: parameters[i] for i in self.members}

    @cached_property
    def storage(self) -> Tensor:
        """Made when a gradient first travels: rules that only average parameters never need it."""
        first = self._parameters[self.members[0]]
        return torch.zeros(self.dense_end + self.control_numel, dtype=first.dtype, device=first.device)

    @cached_property
    def places(self) -> dict[int, Tensor]:
        """Each parameter's own part of the storage, in its own shape."""
        lengths = [p.numel() for p in self._parameters.values()]
        parts = self.storage[: self.dense_end].split(lengths)
        return {i: _shaped_like(part, p) for part, (i, p) in zip(parts, self._parameters.items(), strict=True)}

    @property
    def control(self) -> Tensor:
        return self.storage[self.dense_end :]

    @property
    def cuttable(self) -> bool:
        """Compressors work on whole tensors, in every tier."""
        return not any(self.compressed_by)


@dataclass(eq=False)
class Piece:
    """A message at work: a range of a buffer, or all of it."""

    buffer: Buffer
    ranges: list[tuple[int, int, int]]  # parameter, and the range of the storage that it carries of it
    awaited: frozenset[int]
    urgency: int
    number: int | None  # where its buffer travels in pieces
    plan: CommPlan
    waiting: set[int] = field(default_factory=set)
    departed: Departed | None = None
    _parts: dict[bool, list[Tensor]] = field(default_factory=dict)

    @cached_property
    def carried(self) -> list[int]:
        return [i for i, _, _ in self.ranges]

    def dense_parts(self, compressed: list[int], with_control: bool) -> list[Tensor]:
        """What it sums of its buffer, as few slices as possible, with the control part where it is the last message."""
        usual = not self.buffer.skipped and compressed is self.buffer.compressed_by[0]
        if usual and with_control in self._parts:
            return self._parts[with_control]
        end, skipped = self.buffer.dense_end, self.buffer.skipped
        ranges = [(a, b) for i, a, b in self.ranges if i not in compressed and i not in skipped]
        joined: list[tuple[int, int]] = []
        for a, b in [*ranges, (end, end + self.buffer.control_numel)] if with_control else ranges:
            if joined and joined[-1][1] == a:
                joined[-1] = (joined[-1][0], b)
            else:
                joined.append((a, b))
        parts = [self.buffer.storage[a:b] for a, b in joined] or [self.buffer.storage[:0]]
        if usual:
            self._parts[with_control] = parts
        return parts

    @cached_property
    def priority(self) -> Priority | None:
        credit = self.plan.credit_bytes
        return None if credit is None else Priority(self.urgency, credit)


class Reducer:
    """All messages of one model for the current phase of its strategy; `order` has (part, message) as they leave."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        specs: Sequence[TensorSpec],
        parts: Sequence[Part],
        order: Sequence[tuple[int, Message]],
        turns: Turns,
    ) -> None:
        self._parameters, self._specs, self._turns = parameters, specs, turns
        self.pieces = _pieces(parts, order, specs, parameters)
        buffers = dict.fromkeys(piece.buffer for piece in self.pieces)
        self._home = {i: buffer for buffer in buffers for i in buffer.members}
        self._awaiting: dict[int, list[Piece]] = {i: [] for i in self._home}
        self.carrying: dict[int, list[Piece]] = {i: [] for i in self._home}
        for piece in self.pieces:
            for i in piece.awaited:
                self._awaiting[i].append(piece)
            for i in piece.carried:
                self.carrying[i].append(piece)
        self._touched = [False] * len(parameters)
        self.arrival: list[int] = []
        self.active: list[Piece] = []
        self._scales: dict[int, float] = {}
        self._next = 0
        self._step = 0

    def begin(self, step: int, share_of_sum: float = 1.0, weights: Mapping[int, float] | None = None) -> None:
        """A backward pass whose gradients will travel is about to bring its first; where they are the sum of several
        passes, a share of it travels. `weights` multiply gradients; of those at zero nothing is awaited or sent."""
        self._step = step
        weights = weights or {}
        skipped = frozenset(i for i, weight in weights.items() if weight == 0)
        tiers = {id(piece.buffer.tiers): piece.buffer.tiers for piece in self.pieces}
        averages = {key: [t.sync.averages_gradients(step) for t in found] for key, found in tiers.items()}
        self.active = [
            piece
            for piece in self.pieces
            if any(averages[id(piece.buffer.tiers)]) and not (skipped and skipped.issuperset(piece.carried))
        ]
        for buffer in dict.fromkeys(piece.buffer for piece in self.active):
            share = 1 / buffer.tiers[0].group.size if averages[id(buffer.tiers)][0] else 1.0
            self._scales.update(dict.fromkeys(buffer.compressed, share_of_sum))
            self._scales.update(dict.fromkeys(buffer.dense, share_of_sum * share))
            buffer.skipped = skipped.intersection(buffer.members)
        for piece in self.active:
            piece.waiting = set(piece.awaited - skipped if skipped else piece.awaited)
        for i, weight in weights.items():
            if i in self._scales:
                self._scales[i] *= weight
        self._next = 0
        self._turns.enter(self, self._send_complete)

    def touch(self, i: int) -> None:
        """A gradient was accumulated without being sent (`no_sync`)."""
        self._touched[i] = True

    def ready(self, i: int) -> None:
        """Parameter i has its gradient: take it along; send what is complete. Never waits."""
        self._touched[i] = True
        self.arrival.append(i)
        if i not in self._scales:  # its section does not average gradients in this step
            return
        if i not in self.carrying[i][0].waiting:
            raise ContractError(
                f"the gradient of {self._specs[i].name!r} arrived twice in one backward pass, as happens when a shared "
                "weight lies under reentrant activation checkpointing: use checkpoint(..., use_reentrant=False)"
            )
        self._fill(i)
        if self._next < len(self.active) and not self.active[self._next].waiting:
            self._send_complete()

    def finish(self) -> list[Departed]:
        """End of backward: send what is left, zeros for what never came. Returns what is on its way, in order."""
        rest = self.active[self._next :]
        for i in sorted({i for piece in rest for i in piece.waiting.intersection(piece.carried)}):
            self._fill(i)
        for piece in rest:
            self._depart(piece)
        self._next = len(self.active)
        self._turns.leave(self)
        return [piece.departed for piece in self.active if piece.departed is not None]

    def settle(self) -> None:
        """Everything has arrived: gradients become the averages, counters start anew."""
        self.settle_some(dict.fromkeys(i for piece in self.active for i in piece.carried))
        self.forget()

    def settle_some(self, which: Iterable[int]) -> None:
        """The gradients of these have arrived, and so has the last message if this worker had none for one of them."""
        flags: Tensor | None = None
        for i in which:
            buffer = self._home[i]
            if i in buffer.skipped:
                continue
            if not self._touched[i] and flags is None:
                flags = self.active[-1].buffer.control.float().cpu()
            if self._touched[i] or (flags is not None and flags[i] != 0):
                self._parameters[i].grad = buffer.places[i]

    def has_own(self, i: int) -> bool:
        """Whether this worker has computed a gradient for it."""
        return self._touched[i]

    def needed_for(self, i: int) -> list[Piece]:
        """What must have arrived before this parameter's gradient is known."""
        return self.carrying[i] if self._touched[i] else [*self.carrying[i], self.active[-1]]

    def forget(self) -> None:
        """Ready for the next backward pass."""
        self._turns.leave(self)
        for piece in self.active:
            piece.waiting, piece.departed = set(), None
            piece.buffer.skipped = frozenset()
        self._touched = [False] * len(self._parameters)
        self._scales.clear()
        self.active = []
        self.arrival = []

    def abandon(self) -> list[Departed]:
        """A backward pass raised half-way: what has left and must still arrive. This reducer is not used again."""
        left = [piece.departed for piece in self.active if piece.departed is not None]
        self._turns.leave(self)
        return left

    # ------------------------------------------------------------------------------------------ inside

    def _fill(self, i: int) -> None:
        place, gradient, scale = self._home[i].places[i], self._parameters[i].grad, self._scales[i]
        if gradient is None:
            place.zero_()
        else:
            if gradient.requires_grad:
                gradient = gradient.detach()
            if gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            torch.mul(gradient, scale, out=place)
        for piece in self._awaiting[i]:
            piece.waiting.discard(i)

    def _send_complete(self) -> None:
        while self._turns.has(self) and self._next < len(self.active):
            piece = self.active[self._next]
            if piece.waiting:
                return
            self._depart(piece)
            self._next += 1

    def _depart(self, piece: Piece) -> None:
        carries_control = piece is self.active[-1]
        if carries_control:
            control = piece.buffer.control
            share = 1 / piece.buffer.tiers[0].group.size  # any weight will do: what counts is whether a sum is zero
            if all(self._touched):
                control.fill_(share)
            else:
                control.copy_(torch.tensor(self._touched, dtype=control.dtype) * share)
        piece.departed = Departed(self._travel(piece, carries_control))

    def _travel(self, piece: Piece, carries_control: bool) -> Generator[Any, Any, None]:
        """Through every tier that averages in this step, inner to outer."""
        tiers, compressed_by = piece.buffer.tiers, piece.buffer.compressed_by
        if len(tiers) == 1:
            return self._cross(piece, tiers[0], compressed_by[0], carries_control)
        return self._climb(piece, carries_control)

    def _climb(self, piece: Piece, carries_control: bool) -> Generator[Any, Any, None]:
        for tier, compressed in zip(piece.buffer.tiers, piece.buffer.compressed_by, strict=True):
            if tier.sync.averages_gradients(self._step):
                yield from self._cross(piece, tier, compressed, carries_control)

    def _cross(
        self, piece: Piece, tier: Tier, compressed: list[int], carries_control: bool
    ) -> Generator[Any, Any, None]:
        """One tier: the dense part is summed, each compressed tensor holds its own conversation beside it.

        The buffer is laid out for the innermost tier, whose dense part is one slice, divided while it was filled. A
        tier that compresses other tensors has its dense part gathered and put back, and so has a pass that skips some.
        """
        buffer = piece.buffer
        if buffer.skipped:
            compressed = [i for i in compressed if i not in buffer.skipped]
        parts = piece.dense_parts(compressed, carries_control)
        dense = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
        if tier is not buffer.tiers[0]:
            dense.mul_(1 / tier.group.size)
        lanes: list[Generator[Any, Any, Any]] = []
        if dense.numel():
            control = buffer.control_numel / dense.numel() if carries_control else 0.0
            request = Reduce(dense, "sum", control, piece.plan.halves, piece.priority, piece.number)
            lanes.append(journey(tier.carry(request)))
        if compressed:
            lanes.append(self._converse(buffer, tier, compressed))
        yield from lanes[0] if len(lanes) == 1 else side_by_side(lanes)
        if len(parts) > 1:
            for part, arrived in zip(parts, dense.split([part.numel() for part in parts]), strict=True):
                part.copy_(arrived.view(part.shape))

    def _converse(self, buffer: Buffer, tier: Tier, compressed: Sequence[int]) -> Generator[Any, Any, None]:
        places = [buffer.places[i] for i in compressed]
        means = yield from tier.converse([self._specs[i] for i in compressed], places, self._step)
        for place, mean in zip(places, means, strict=True):
            place.copy_(mean)


def _pieces(
    parts: Sequence[Part],
    order: Sequence[tuple[int, Message]],
    specs: Sequence[TensorSpec],
    parameters: Sequence[nn.Parameter],
) -> list[Piece]:
    """Messages in order. A bucket in which something is compressed travels as one, in the place of its last message."""
    buffers: dict[tuple[int, int], Buffer] = {}
    found: dict[Buffer | int, Piece] = {}
    for number, (which, message) in enumerate(order):
        part, key = parts[which], (which, message.bucket)
        if key not in buffers:
            buffers[key] = Buffer(part, message.bucket, specs, parameters)
        buffer, plan = buffers[key], part.plan
        ranges = [(part.members[k], a, b) for k, a, b in plan.carried(message)]
        awaited = {*(part.members[k] for k in message.after), *(i for i, _, _ in ranges)}
        cut = message.stop - message.start < buffer.dense_end
        piece = Piece(buffer, ranges, frozenset(awaited), message.urgency, number if cut else None, plan)
        if cut and not buffer.cuttable:
            before = found.pop(buffer, piece)
            piece.number, piece.urgency = None, min(before.urgency, piece.urgency)
            piece.awaited |= before.awaited
        if not buffer.cuttable:
            piece.ranges = buffer.ranges
        found[number if piece.number is not None else buffer] = piece
    return list(found.values())


def _shaped_like(flat: Tensor, parameter: Tensor) -> Tensor:
    """A view with the parameter's own strides where they are a permutation of contiguous ones, as autograd expects."""
    strides: tuple[int, ...] = parameter.stride()
    expected = 1
    for d in sorted(range(parameter.dim()), key=lambda d: (strides[d], -d)):
        if parameter.size(d) != 1 and strides[d] != expected:
            return flat.view(parameter.shape)
        expected *= parameter.size(d)
    return flat.as_strided(parameter.shape, strides, flat.storage_offset())
