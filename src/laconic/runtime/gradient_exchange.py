"""The backward pass of a distributed model: gradients that become ready are sent, and averages take their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laconic.errors import ContractError, NonFinite
from laconic.runtime.arrangement import Arrangement
from laconic.runtime.broadcast import broadcast_tensors
from laconic.runtime.buckets import PlannedPartition
from laconic.runtime.comm_planner import CommPlanner, in_order
from laconic.runtime.deferred_step import DeferredStep
from laconic.runtime.deferred_weight_grad import DeferredWeightGradients
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.multi_model_order import MultiModelOrder
from laconic.runtime.parameters import Parameters
from laconic.runtime.reducer import Reducer
from laconic.runtime.skipped_gradients import SkippedGradients
from laconic.runtime.sparse_gradients import average_sparse
from laconic.worker import Communication, Group, Worker


@dataclass
class Progress:
    """How far a training has come."""

    steps: int = 0
    accumulated_steps: int = 0  # steps whose gradients are summed in p.grad for a later exchange
    syncing: bool = True  # False inside `no_sync`


class GradientExchange:
    """What a source of gradients reports to: it sends each bucket when it is complete, and puts the averages in place.

    `plan` makes new buckets for the present arrangement.
    """

    def __init__(
        self,
        worker: Worker,
        agreeing: Sequence[Group],
        model: nn.Module,
        parameters: Parameters,
        arrangement: Arrangement,
        comm_planner: CommPlanner,
        deferred_step: DeferredStep,
        progress: Progress,
        refuse_nonfinite: bool,
        rearrange: Callable[[], None],
    ) -> None:
        self._worker, self._agreeing, self._parameters = worker, agreeing, parameters
        self._arrangement, self._comm_planner, self._deferred_step = arrangement, comm_planner, deferred_step
        self._progress, self._refuse_nonfinite, self._rearrange = progress, refuse_nonfinite, rearrange
        self.skipped = SkippedGradients(parameters.dense)
        self.timed_elsewhere = False  # whether the source itself reports to the clock how far backward has come
        self.in_backward = False
        self.averaged = False  # whether p.grad holds averages that have not been applied or zeroed
        self._plain_pass = False  # a backward pass whose gradients need nothing but to be sent
        self._micro_batches = 1
        self._averages_gradients = True
        self._nonfinite: Tensor | None = None
        self._abandoned: list[InFlight] = []
        self._early_broadcasts: list[InFlight] = []
        self._deferred_weight_gradients = DeferredWeightGradients(model, parameters.trainable, self.gradient_ready)
        self._buffer_owners = [(m, name) for m in model.modules() for name, _ in m.named_buffers(recurse=False)]
        self.reducer: Reducer

    def plan(self) -> None:
        """Plan the messages of the present arrangement, and make the buckets that carry them."""
        planner = self._comm_planner
        self._micro_batches = self._arrangement.micro_batches
        self._averages_gradients = self._arrangement.averages_gradients
        planner.arranged()
        parts = [
            PlannedPartition(s.plan(planner.arrival, planner.timing(s)), s.members, s.tiers)
            for s in self._arrangement.partitions
        ]
        order = in_order(parts, planner.arrival)
        self._deferred_weight_gradients.choose([part.members[k] for part in parts for k in part.plan.postponed])
        lane = self._worker.communication_stream(self._parameters.device)
        models = MultiModelOrder.of(self._worker)
        self.reducer = Reducer(self._parameters.dense, self._parameters.specs, parts, order, models, lane)

    @property
    def only_accumulates(self) -> bool:
        """Whether the backward of this step adds to the sum without exchanging it."""
        return (self._progress.steps + 1) % self._micro_batches != 0

    @property
    def _times_gradients(self) -> bool:
        return not self.timed_elsewhere and (self._worker.times_gradients or self._comm_planner.times_gradients)

    @property
    def wants_gradients(self) -> bool:
        """Whether this session has anything to do with single gradients of the coming pass: to send them, to sum them
        for a later exchange, to time, check or skip them. Rules with local steps have not."""
        timed = self._times_gradients
        special = self._refuse_nonfinite or bool(self._parameters.sparse) or self._micro_batches > 1
        deferred = self._deferred_weight_gradients.defers
        return timed or special or deferred or self._averages_gradients or self._arrangement.skips

    def choose_gradients(self) -> None:
        """Ask the rules which gradients the coming step needs; those of the others are not computed."""
        self.skipped.decide(self._arrangement.gradient_weights())

    def buffers(self) -> list[Tensor]:
        """Return the model's buffers."""
        found = (owner._buffers[name] for owner, name in self._buffer_owners)
        return [buffer for buffer in found if buffer is not None]

    def close(self) -> None:
        """Compute and send nothing any more."""
        self.reducer.abandon()
        self._deferred_weight_gradients.remove()
        self.skipped.release()

    # ------------------------------------------------------------------------------------------ reported by a source

    def forward_ended(self) -> None:
        self._comm_planner.forward_ended()

    def skips_gradients(self) -> bool:
        return bool(self.skipped.skipped)

    def gradient_ready(self, i: int) -> None:
        """Handle the gradient of parameter i: report the computation and send the messages that are now complete. This
        never waits."""
        if self._plain_pass:
            self.reducer.ready(i)
            return
        if i in self.skipped.skipped:  # the script has switched it on again: it is ignored
            self._parameters.trainable[i].grad = None
            return
        if not self.timed_elsewhere:
            self._worker.computed("backward", *self._parameters.share(i))
        self._comm_planner.gradient(i)
        dense = i < len(self._parameters.dense)
        if not self._progress.syncing or self.only_accumulates:
            if dense:
                self.reducer.mark_local(i)
            return
        if not self.in_backward:
            if self.averaged and self._arrangement.has_memory:
                raise ContractError(
                    f"a second backward() before step() would be remembered twice by `{self._arrangement.strategy}`: "
                    "accumulate inside `with model.no_sync():` and let only the last backward of a step communicate"
                )
            self._begin()
        if self._refuse_nonfinite:
            self._check_finite(self._parameters.trainable[i])
        if dense:
            self.reducer.ready(i)

    def backward_ended(self) -> None:
        """Send the rest, wait for the averages unless they are deferred, and make them the gradients."""
        self._deferred_weight_gradients.run()
        skipped = self.skipped.skipped
        for i in skipped:  # half of a layer's backward computes the gradient of its input
            self._worker.computed("backward", self._parameters.share(i)[0] / 2)
        without_gradients = skipped and not self.in_backward and self._progress.syncing
        if without_gradients and self.skipped.some_are_needed(self._parameters.trainable):
            self._begin()  # this worker used skipped parameters only; others may wait for its zeros
        if not self.in_backward:
            return
        arrival = self.reducer.arrival
        abandoned, self._abandoned = self._abandoned, []
        verdict: InFlight | None = None
        try:
            communications = self.reducer.finish()
            exchanging = bool(communications or skipped)
            others = [InFlight(self._average_sparse(p)) for p in self._parameters.sparse] if exchanging else []
            if exchanging and self._arrangement.collective:
                others += self._early_broadcasts or self._broadcast_buffers()
            if self._refuse_nonfinite:
                others.append(verdict := InFlight(self._agree_on_nonfinite()))
            deferred = self._defers_step()
            complete([*abandoned, *([] if deferred else communications), *others])
        except BaseException:
            self.reducer.forget()
            raise
        finally:
            self.in_backward = self._plain_pass = False
        self.averaged = True
        if deferred:
            self._deferred_step.defer(self.reducer)
        else:
            self.reducer.settle()
        if verdict is not None and verdict.result:
            raise NonFinite(
                f"a gradient of step {self._progress.steps} is NaN or infinite on at least one worker; lower the "
                'learning rate, clip gradients, or pass them on with distribute(..., nonfinite="pass")'
            )
        if communications and self._arrangement.collective and not skipped:
            self._comm_planner.backward_ended(arrival)

    def backward_abandoned(self) -> None:
        """Handle a backward pass that raised half-way: its messages are completed with the next pass; nothing waits
        here."""
        self.in_backward = self._plain_pass = False
        self._abandoned += self.reducer.abandon()
        self._rearrange()  # new buffers: messages from the old ones are still in flight

    # ------------------------------------------------------------------------------------------ inside

    def _begin(self) -> None:
        self._deferred_step.settle()  # has happened, unless this loss bypassed the model's forward
        self.in_backward = True
        self._nonfinite = None
        self.reducer.begin(self._progress.steps, 1 / (self._progress.accumulated_steps + 1), self.skipped.weights)
        early = self._defers_step() and self._arrangement.collective
        self._early_broadcasts = self._broadcast_buffers() if early else []
        timed = self._times_gradients
        special = self._refuse_nonfinite or self._parameters.sparse or self.skipped.skipped
        self._plain_pass = not timed and not special

    def _defers_step(self) -> bool:
        """Return whether messages may arrive after backward, since gates of the next forward pass wait for them."""
        gates = self._comm_planner.gates
        return gates is not None and gates.known and all(message.plan.gated for message in self.reducer.messages)

    def _broadcast_buffers(self) -> list[InFlight]:
        """Start broadcasting rank 0's buffers, if there are any; this precedes gradients that are only waited for
        later."""
        if not self._buffer_owners:
            return []
        tiers = self._arrangement.averaging_tiers(self._progress.steps)
        return [InFlight(broadcast_tensors(self.buffers(), [tier.group for tier in tiers]))]

    def _average_sparse(self, parameter: nn.Parameter) -> Communication[None]:
        for tier in self._arrangement.averaging_tiers(self._progress.steps):
            parameter.grad = yield from average_sparse(parameter, tier.architecture, tier.group)
        if self._progress.accumulated_steps and parameter.grad is not None:
            parameter.grad = parameter.grad / (self._progress.accumulated_steps + 1)

    def _check_finite(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            nonfinite = values.detach().isfinite().all().logical_not()
            self._nonfinite = nonfinite if self._nonfinite is None else self._nonfinite.logical_or(nonfinite)

    def _agree_on_nonfinite(self) -> Communication[Any]:
        """Agree over all workers that train this model, whatever groups the gradients themselves are sent in, whether a
        gradient is not finite."""
        flag = torch.zeros(1, device=self._parameters.device)
        if self._nonfinite is not None:
            flag += self._nonfinite
        for group in self._agreeing:
            flag = yield group.all_reduce(flag, "max", control=1.0)
        return bool(flag != 0)
