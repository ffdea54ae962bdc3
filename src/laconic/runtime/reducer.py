"""The reducer sends gradients and receives averages: it carries out `CommPlan`s while backward runs.

Each bucket has one flat buffer, laid out as [compressible tensors | dense tensors | control], and is sent as one
message or in pieces. A gradient is copied into its place when it is ready; a message whose gradients are all ready is
sent at once if all before it have been, and the rest is sent at the end of backward. When a tensor's messages have
arrived, `p.grad` *is* its place in the buffer, so nothing is copied back.

The control part is sent with the last message: for each parameter, whether any worker had a gradient for it. So a
parameter unused on one rank gets the others' average, one unused everywhere keeps no gradient, and all workers decide
alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laconic.errors import ContractError
from laconic.runtime.buckets import Bucket, BucketMessage, PlannedPartition, messages_of
from laconic.runtime.in_flight import InFlight, concurrently
from laconic.runtime.multi_model_order import MultiModelOrder
from laconic.runtime.spans import Span
from laconic.runtime.tier_shards import average_in_shards
from laconic.runtime.tiers import Tier
from laconic.values.comm_plan import Message
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Reduce


class Reducer:
    """All messages of one model for the current phase of its strategy; `order` lists (partition, message) in the order
    of sending."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        specs: Sequence[TensorSpec],
        parts: Sequence[PlannedPartition],
        order: Sequence[tuple[int, Message]],
        model_order: MultiModelOrder,
        lane: torch.cuda.Stream | None = None,
    ) -> None:
        self._parameters, self._specs, self._model_order, self._lane = parameters, specs, model_order, lane
        self.messages = messages_of(parts, order, specs, parameters)
        buckets = dict.fromkeys(message.bucket for message in self.messages)
        self._tiers = {id(bucket.tiers): bucket.tiers for bucket in buckets}
        self._bucket_of = {i: bucket for bucket in buckets for i in bucket.members}
        self._awaiting: dict[int, list[BucketMessage]] = {i: [] for i in self._bucket_of}
        self.carrying: dict[int, list[BucketMessage]] = {i: [] for i in self._bucket_of}
        for message in self.messages:
            for i in message.awaited:
                self._awaiting[i].append(message)
            for i in message.carried:
                self.carrying[i].append(message)
        self._touched = [False] * len(parameters)
        self._arrived = bytearray(len(parameters))  # which gradients are in their places, in this pass
        self.arrival: list[int] = []
        self.active: list[BucketMessage] = []
        self._factors: list[float | None] = [None] * len(parameters)
        self._usual: dict[tuple[Any, ...], tuple[list[BucketMessage], list[float | None]]] = {}
        self._next = 0
        self._step = 0

    def begin(self, step: int, share_of_sum: float = 1.0, weights: Mapping[int, float] | None = None) -> None:
        """Prepare for a backward pass whose gradients will be sent. Where gradients are the sum of several passes, they
        are multiplied by `share_of_sum`. `weights` multiply single gradients; those of weight zero are neither awaited
        nor sent."""
        self._step = step
        averages = {key: tuple(t.sync.averages_gradients(step) for t in tiers) for key, tiers in self._tiers.items()}
        usual = (*averages.values(), share_of_sum)
        if usual not in self._usual:
            self._usual[usual] = self._prepared(averages, share_of_sum)
        self.active, self._factors = self._usual[usual]
        for message in self.active:
            message.missing = len(message.awaited)
        if weights:
            self._weigh(weights)
        self._next = 0
        self._model_order.enter(self, self._send_complete)

    def _prepared(
        self, averages: Mapping[int, tuple[bool, ...]], share_of_sum: float
    ) -> tuple[list[BucketMessage], list[float | None]]:
        """Return the messages of a pass in which these tiers average gradients, and the factor of each gradient; None
        for those that are not sent."""
        active = [message for message in self.messages if any(averages[id(message.bucket.tiers)])]
        factors: list[float | None] = [None] * len(self._parameters)
        for bucket in dict.fromkeys(message.bucket for message in active):
            share = 1 / bucket.tiers[0].group.size if averages[id(bucket.tiers)][0] else 1.0
            for i in bucket.compressed:
                factors[i] = share_of_sum
            for i in bucket.dense:
                factors[i] = share_of_sum * share
        return active, factors

    def _weigh(self, weights: Mapping[int, float]) -> None:
        """Multiply single gradients by these weights, and leave out those of weight zero."""
        skipped = frozenset(i for i, weight in weights.items() if weight == 0)
        self.active = [message for message in self.active if not (skipped and skipped.issuperset(message.carried))]
        self._factors = list(self._factors)
        for i, weight in weights.items():
            factor = self._factors[i]
            self._factors[i] = None if factor is None else factor * weight
        for bucket in dict.fromkeys(message.bucket for message in self.active):
            bucket.skipped = skipped.intersection(bucket.members)
        for message in self.active:
            message.missing = len(message.awaited - skipped)

    def mark_local(self, i: int) -> None:
        """Note that gradient i was accumulated without being sent (`no_sync`)."""
        self._touched[i] = True

    def ready(self, i: int) -> None:
        """Copy the gradient of parameter i into its bucket and send the messages that are complete. This never
        waits."""
        self._touched[i] = True
        self.arrival.append(i)
        factor = self._factors[i]
        if factor is None:  # its partition does not average gradients in this step
            return
        try:
            if self._arrived[i]:
                raise ContractError(
                    f"the gradient of {self._specs[i].name!r} arrived twice in one backward pass, as when a shared "
                    "weight lies under reentrant activation checkpointing: use checkpoint(..., use_reentrant=False)"
                )
            self._arrived[i] = True
            self._bucket_of[i].put(i, factor)
            for message in self._awaiting[i]:
                message.missing -= 1
            if self._next < len(self.active) and not self.active[self._next].missing:
                self._send_complete()
        except BaseException:
            self._model_order.leave(self)  # other models of this process must not wait for this one to finish sending
            raise

    def finish(self) -> list[InFlight]:
        """Send the rest at the end of backward, with zeros for gradients that were not computed. Return the
        communications in flight, in order."""
        rest = self.active[self._next :]
        for message in rest:
            for i in message.carried if message.missing else ():
                factor = self._factors[i]
                if not self._arrived[i] and i not in message.bucket.skipped and factor is not None:
                    self._arrived[i] = True
                    message.bucket.put(i, factor)
        for message in rest:
            self._launch(message)
        self._next = len(self.active)
        self._model_order.leave(self)
        return [message.in_flight for message in self.active if message.in_flight is not None]

    def settle(self) -> None:
        """Make the averages the gradients, after everything has arrived, and prepare for the next pass."""
        self.settle_parameters(dict.fromkeys(chain.from_iterable(message.carried for message in self.active)))
        self.forget()

    def settle_parameters(self, which: Iterable[int]) -> None:
        """Make the averages the gradients of these parameters. Their messages have arrived, and so has the last message
        if this worker had no gradient for one of them."""
        flags: Tensor | None = None
        for i in which:
            bucket = self._bucket_of[i]
            if i in bucket.skipped:
                continue
            if not self._touched[i]:
                flags = self.active[-1].bucket.control.float().cpu() if flags is None else flags
                if flags[i] == 0:
                    continue
            self._parameters[i].grad = bucket.places[i]

    def has_gradient(self, i: int) -> bool:
        """Return whether this worker has computed a gradient for parameter i."""
        return self._touched[i]

    def is_in_bucket(self, i: int, gradient: Tensor) -> bool:
        """Return whether this gradient lies in the bucket of parameter i, where messages are sent and received."""
        place = self._bucket_of[i].places[i]
        return gradient.layout == torch.strided and gradient.data_ptr() == place.data_ptr()

    def needed_for(self, i: int) -> list[BucketMessage]:
        """Return the messages that must have arrived before the gradient of parameter i is known."""
        return self.carrying[i] if self._touched[i] else [*self.carrying[i], self.active[-1]]

    def forget(self) -> None:
        """Reset everything for the next backward pass."""
        self._model_order.leave(self)
        for message in self.active:
            message.missing, message.in_flight = 0, None
            message.bucket.reset()
        self._touched = [False] * len(self._parameters)
        self._arrived = bytearray(len(self._parameters))
        self._factors = [None] * len(self._parameters)
        self.active = []
        self.arrival = []

    def abandon(self) -> list[InFlight]:
        """Give up a backward pass that raised half-way; return the communications in flight, which must still be
        completed. This reducer is not used again."""
        in_flight = [message.in_flight for message in self.active if message.in_flight is not None]
        self._model_order.leave(self)
        return in_flight

    # ------------------------------------------------------------------------------------------ inside

    def _send_complete(self) -> None:
        while self._model_order.is_first(self) and self._next < len(self.active):
            message = self.active[self._next]
            if message.missing:
                return
            self._launch(message)
            self._next += 1

    def _launch(self, message: BucketMessage) -> None:
        message.bucket.fill()
        carries_control = message is self.active[-1]
        if carries_control:
            control = message.bucket.control
            share = 1 / message.bucket.tiers[0].group.size  # any weight will do: what counts is whether a sum is zero
            if False not in self._touched:
                control.fill_(share)
            else:
                control.copy_(torch.tensor(self._touched, dtype=control.dtype) * share)
        lane = self._lane if any(message.bucket.compressed_by) else None  # else there is nothing to compute
        message.in_flight = InFlight(self._communicate(message, carries_control), lane)

    def _communicate(self, message: BucketMessage, carries_control: bool) -> Communication[None]:
        """Return the communication of a message through every tier that averages in this step, inner to outer."""
        tiers, compressed_by = message.bucket.tiers, message.bucket.compressed_by
        if len(tiers) == 1:
            return self._through_tier(message, tiers[0], compressed_by[0], carries_control)
        return self._through_tiers(message, carries_control)

    def _through_tiers(self, message: BucketMessage, carries_control: bool) -> Communication[None]:
        """Average a message in several tiers: in shards where that is possible, and otherwise tier by tier."""
        bucket = message.bucket
        which = tuple(k for k, tier in enumerate(bucket.tiers) if tier.sync.averages_gradients(self._step))
        shards = message.shards(which, carries_control) if len(which) > 1 else None
        if shards is not None:
            tiers = [bucket.tiers[k] for k in which]
            yield from concurrently([self._in_shards(bucket, tiers, parts, span) for parts, span in shards])
            return
        for k in which:
            yield from self._through_tier(message, bucket.tiers[k], bucket.compressed_by[k], carries_control)

    def _in_shards(
        self, bucket: Bucket, tiers: Sequence[Tier], parts: Sequence[Tensor], span: Span
    ) -> Communication[None]:
        flat = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        if span.compressed[0] or tiers[0] is not bucket.tiers[0]:  # otherwise divided while it was filled
            flat.mul_(1 / tiers[0].group.size)
        yield from average_in_shards(tiers, flat, span, self._step)
        if len(parts) > 1:
            for part, arrived in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(arrived)

    def _through_tier(
        self, message: BucketMessage, tier: Tier, compressed: list[int], carries_control: bool
    ) -> Communication[None]:
        """Average a message in one tier: the dense part is summed, and each compressed tensor has an exchange of its
        own beside it.

        The buffer is laid out for the innermost tier, whose dense part is one slice, divided while it was filled. For a
        tier that compresses other tensors, and for a pass that skips some, the dense part is gathered and put back.
        """
        bucket = message.bucket
        if bucket.skipped:
            compressed = [i for i in compressed if i not in bucket.skipped]
        parts = message.dense_parts(compressed, carries_control)
        dense = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
        if tier is not bucket.tiers[0]:
            dense.mul_(1 / tier.group.size)
        communications: list[Communication[Any]] = []
        if dense.numel():
            control = bucket.control_numel / dense.numel() if carries_control else 0.0
            request = Reduce(dense, "sum", control, message.plan.halves, message.priority, message.number)
            communications.append(tier.carry(request))
        if compressed:
            communications.append(self._average_compressed(bucket, tier, compressed))
        yield from communications[0] if len(communications) == 1 else concurrently(communications)
        if len(parts) > 1:
            for part, arrived in zip(parts, dense.split([part.numel() for part in parts]), strict=True):
                part.copy_(arrived.view(part.shape))

    def _average_compressed(self, bucket: Bucket, tier: Tier, compressed: Sequence[int]) -> Communication[None]:
        if tier is bucket.tiers[0] and not bucket.skipped:
            lane = self._lane is not None
            whole = tier.whole.average(bucket.compressed_specs, bucket.compressed_part, self._step, lane)
            if whole is not None:
                yield from whole
                return
        places = [bucket.places[i] for i in compressed]
        means = yield from tier.average([self._specs[i] for i in compressed], places, self._step)
        for place, mean in zip(places, means, strict=True):
            place.copy_(mean)
