"""Gradients out, averages in: carries a `CommPlan` out while backward runs.

Each message has one flat buffer, laid out as [compressible tensors | dense tensors | control]. A gradient is copied
into its place when it is ready; a full message departs at once if all before it have, and what is left departs at the
end of backward. After that `p.grad` *is* its place in the buffer, so nothing is copied back.

The control part rides on the last message: for each parameter, whether any worker had a gradient for it. So a parameter
unused on one rank gets the others' average, one unused everywhere keeps no gradient, and everyone decides alike.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from laconic.compression.base import TensorSpec
from laconic.engine.exchange import Departed, side_by_side, together
from laconic.engine.tiers import Tier
from laconic.engine.turns import Turns
from laconic.errors import ContractError
from laconic.schedule.plan import Message
from laconic.worker import Reduce


class Buffer:
    """One message's storage and the parameters' places in it."""

    def __init__(
        self,
        message: Message,
        specs: Sequence[TensorSpec],
        parameters: Sequence[nn.Parameter],
        tiers: Sequence[Tier],
        control: int,
    ) -> None:
        compressed = [i for i in message.tensors if tiers[0].compressor.accepts(specs[i])]
        dense = [i for i in message.tensors if i not in set(compressed)]
        self.leaves, self.tiers, self.compressed, self.dense = message.leaves, tiers, compressed, dense
        self.members = [*compressed, *dense]
        self.compressed_by = [[i for i in self.members if t.compressor.accepts(specs[i])] for t in tiers]
        self.control_numel = control
        self.dense_start = sum(specs[i].numel for i in compressed)
        self.dense_end = sum(specs[i].numel for i in self.members)
        self.waiting = set(self.members)
        self.skipped: frozenset[int] = frozenset()  # of which nothing travels in this pass
        self.departed: Departed | None = None
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


class Reducer:
    """All messages of one model for the current phase of its strategy."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        specs: Sequence[TensorSpec],
        messages: Sequence[tuple[Message, Sequence[Tier]]],
        turns: Turns,
    ) -> None:
        self._parameters, self._specs, self._turns = parameters, specs, turns
        control = len(parameters)
        self.buffers = [Buffer(message, specs, parameters, tiers, control) for message, tiers in messages]
        self._home = {i: buffer for buffer in self.buffers for i in buffer.members}
        self._touched = [False] * len(parameters)
        self.arrival: list[int] = []
        self._active: list[Buffer] = []
        self._scales: dict[int, float] = {}
        self._next = 0
        self._step = 0

    def begin(self, step: int, share_of_sum: float = 1.0, weights: Mapping[int, float] | None = None) -> None:
        """A backward pass whose gradients will travel is about to bring its first; where they are the sum of several
        passes, a share of it travels. `weights` multiply gradients; of those at zero nothing is awaited or sent."""
        self._step = step
        weights = weights or {}
        skipped = frozenset(i for i, weight in weights.items() if weight == 0)
        self._active = [
            b
            for b in self.buffers
            if any(t.sync.averages_gradients(step) for t in b.tiers) and not skipped.issuperset(b.members)
        ]
        for buffer in self._active:
            innermost = buffer.tiers[0]
            share = 1 / innermost.group.size if innermost.sync.averages_gradients(step) else 1.0
            self._scales.update(dict.fromkeys(buffer.compressed, share_of_sum))
            self._scales.update(dict.fromkeys(buffer.dense, share_of_sum * share))
            buffer.skipped = skipped.intersection(buffer.members)
            buffer.waiting -= buffer.skipped
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
        buffer = self._home[i]
        if i not in self._scales:  # its section does not average gradients in this step
            return
        if i not in buffer.waiting:
            raise ContractError(
                f"the gradient of {self._specs[i].name!r} arrived twice in one backward pass, as happens when a shared "
                "weight lies under reentrant activation checkpointing: use checkpoint(..., use_reentrant=False)"
            )
        self._fill(buffer, i)
        if not buffer.waiting:
            self._send_complete()

    def finish(self) -> list[Departed]:
        """End of backward: send what is left, zeros for what never came. Returns what is on its way, in order."""
        for buffer in self._active[self._next :]:
            for i in sorted(buffer.waiting):
                self._fill(buffer, i)
            self._depart(buffer)
        self._next = len(self._active)
        self._turns.leave(self)
        return [buffer.departed for buffer in self._active if buffer.departed is not None]

    def settle(self) -> None:
        """Everything has arrived: gradients become the averages, counters start anew."""
        flags = None
        if self._active and not all(self._touched):
            flags = self._active[-1].control.float().cpu()
        for buffer in self._active:
            for i, place in buffer.places.items():
                if i in buffer.skipped:
                    continue
                if self._touched[i] or (flags is not None and flags[i] != 0):
                    self._parameters[i].grad = place
        self.forget()

    def forget(self) -> None:
        """Ready for the next backward pass."""
        self._turns.leave(self)
        for buffer in self._active:
            buffer.waiting, buffer.skipped = set(buffer.members), frozenset()
            buffer.departed = None
        self._touched = [False] * len(self._parameters)
        self._scales.clear()
        self._active = []
        self.arrival = []

    def abandon(self) -> list[Departed]:
        """A backward pass raised half-way: what has left and must still arrive. This reducer is not used again."""
        left = [buffer.departed for buffer in self._active if buffer.departed is not None]
        self._turns.leave(self)
        return left

    # ------------------------------------------------------------------------------------------ inside

    def _fill(self, buffer: Buffer, i: int) -> None:
        place, gradient, scale = buffer.places[i], self._parameters[i].grad, self._scales[i]
        if gradient is None:
            place.zero_()
        else:
            if gradient.requires_grad:
                gradient = gradient.detach()
            if gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            torch.mul(gradient, scale, out=place)
        buffer.waiting.discard(i)

    def _send_complete(self) -> None:
        while self._turns.has(self) and self._next < len(self._active):
            buffer = self._active[self._next]
            if buffer.waiting or buffer.leaves != "when_ready":
                return
            self._depart(buffer)
            self._next += 1

    def _depart(self, buffer: Buffer) -> None:
        carries_control = buffer is self._active[-1]
        if carries_control:
            share = 1 / buffer.tiers[0].group.size  # any weight will do: what counts is whether a sum is zero
            if all(self._touched):
                buffer.control.fill_(share)
            else:
                buffer.control.copy_(torch.tensor(self._touched, dtype=buffer.storage.dtype) * share)
        buffer.departed = Departed(self._travel(buffer, carries_control))

    def _travel(self, buffer: Buffer, carries_control: bool) -> Generator[Any, Any, None]:
        """Through every tier that averages in this step, inner to outer."""
        for tier, compressed in zip(buffer.tiers, buffer.compressed_by, strict=True):
            if tier.sync.averages_gradients(self._step):
                yield from self._cross(buffer, tier, compressed, carries_control)

    def _cross(
        self, buffer: Buffer, tier: Tier, compressed: list[int], carries_control: bool
    ) -> Generator[Any, Any, None]:
        """One tier: the dense part is summed, each compressed tensor holds its own conversation beside it.

        The buffer is laid out for the innermost tier, whose dense part is one slice, divided while it was filled. A
        tier that compresses other tensors has its dense part gathered and put back, and so has a pass that skips some.
        """
        end = len(buffer.storage) if carries_control else buffer.dense_end
        if buffer.skipped:
            compressed = [i for i in compressed if i not in buffer.skipped]
        if compressed == buffer.compressed and not buffer.skipped:
            parts = [buffer.storage[buffer.dense_start : end]]
        else:
            parts = [buffer.places[i] for i in buffer.members if i not in compressed and i not in buffer.skipped]
            parts.append(buffer.storage[buffer.dense_end : end])
        dense = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
        if tier is not buffer.tiers[0]:
            dense.mul_(1 / tier.group.size)
        lanes: list[Generator[Any, Any, Any]] = []
        if dense.numel():
            control = (end - buffer.dense_end) / dense.numel()
            lanes.append(together([tier.carry(Reduce(dense, "sum", control))]))
        if compressed:
            lanes.append(self._converse(buffer, tier, compressed))
        yield from side_by_side(lanes)
        if len(parts) > 1:
            for part, arrived in zip(parts, dense.split([part.numel() for part in parts]), strict=True):
                part.copy_(arrived.view(part.shape))

    def _converse(self, buffer: Buffer, tier: Tier, compressed: Sequence[int]) -> Generator[Any, Any, None]:
        places = [buffer.places[i] for i in compressed]
        means = yield from tier.converse([self._specs[i] for i in compressed], places, self._step)
        for place, mean in zip(places, means, strict=True):
            place.copy_(mean)


def _shaped_like(flat: Tensor, parameter: Tensor) -> Tensor:
    """A view with the parameter's own strides where they are a permutation of contiguous ones, as autograd expects."""
    strides: tuple[int, ...] = parameter.stride()
    expected = 1
    for d in sorted(range(parameter.dim()), key=lambda d: (strides[d], -d)):
        if parameter.size(d) != 1 and strides[d] != expected:
            return flat.view(parameter.shape)
        expected *= parameter.size(d)
    return flat.as_strided(parameter.shape, strides, flat.storage_offset())
