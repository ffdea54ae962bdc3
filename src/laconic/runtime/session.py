"""A session: a model, its optimizer and a strategy in training on one worker.

The session owns nothing of the user's: it observes the model through hooks, lets the reducer send gradients, and lets
the sync rules communicate after the optimizer has stepped. It knows no technique by name and no transport.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.compression.optional import takes_factors_of, takes_of
from laconic.errors import ContractError, NonFinite
from laconic.runtime import metrics
from laconic.runtime.autograd_hooks import BackwardHooks
from laconic.runtime.batch_size import set_batch
from laconic.runtime.broadcast import broadcast_tensors
from laconic.runtime.buckets import PlannedPartition
from laconic.runtime.comm_planner import Autotuner, CommPlanner, in_order
from laconic.runtime.deferred_step import DeferredStep
from laconic.runtime.deferred_weight_grad import DeferredWeightGradients
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.learning_rate import scaled
from laconic.runtime.linear_factors import LinearFactors
from laconic.runtime.multi_model_order import MultiModelOrder
from laconic.runtime.optimizer_overrides import OptimizerOverrides
from laconic.runtime.parameters import Parameters
from laconic.runtime.partition import Partition
from laconic.runtime.partition_state import redistribute_state, restore_state, saved_state
from laconic.runtime.reducer import Reducer
from laconic.runtime.server_setup import Shards, address_of, refuse_levels
from laconic.runtime.shared_memory import share
from laconic.runtime.skipped_gradients import SkippedGradients
from laconic.runtime.sparse_gradients import average_sparse
from laconic.runtime.tiers import Stack, Tier, active_conditions, stacks_by_parameter
from laconic.strategy import Condition, StepCondition, Strategy
from laconic.worker import Communication, Group, Worker


@dataclass(frozen=True)
class Options:
    """The options of `distribute` beside the strategy."""

    refuse_nonfinite: bool = False
    gather_sparse: bool = True
    seed: int = 0


class Session:
    """One distributed model on one worker."""

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        strategy: Strategy,
        group: Group,
        levels: Mapping[str, Group],
        options: Options,
        optimizer: Optimizer | None = None,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        self.worker, self.model, self.strategy, self.group = worker, model, strategy, group
        self.steps = 0
        self.syncing = True
        self.optimizer = optimizer  # the user's own
        self._description = dict(description or {})
        self._number = _next_session_number(worker, group.ranks)
        self.noted: dict[str, float] = {}  # numbers that rules report about themselves: a staleness, a period
        self.apply: Callable[[], Any] = lambda: None
        self._levels, self._options = levels, options
        self._in_backward = False
        self._plain_pass = False  # a backward pass whose gradients need nothing but to be sent
        self._averaged = False
        self._accumulated_steps = 0  # steps whose gradients are summed in p.grad for a later exchange
        self._rate_factor = 1.0
        self._batch: int | None = None
        self._nonfinite: Tensor | None = None
        self._abandoned: list[InFlight] = []
        self._early_broadcasts: list[InFlight] = []
        self.autotuner: Autotuner | None = None  # where the strategy is `auto`
        self._logged_before = metrics.serial()
        self.parameters = Parameters.of(model, options.gather_sparse)
        self.comm_planner = CommPlanner(self)
        self.deferred_step = DeferredStep(self.parameters.dense)
        self._deferred_weight_gradients = DeferredWeightGradients(model, self.parameters.trainable, self.gradient_ready)
        self._met_conditions: set[Condition] = set()
        self._buffer_owners = [(m, name) for m in model.modules() for name, _ in m.named_buffers(recurse=False)]
        self.partitions: list[Partition] = []
        self._optimizer_overrides = OptimizerOverrides(optimizer)
        self._linear_factors = LinearFactors(model)
        self._skipped_gradients = SkippedGradients(self.parameters.dense)
        self.arrange()
        self._hooks = BackwardHooks(
            worker,
            model,
            self.parameters.trainable,
            self.comm_planner.forward_ended,
            self.gradient_ready,
            self.backward_ended,
            self._on_abandoned,
            lambda: bool(self._skipped_gradients.skipped),
        )
        self._draw_gradient_weights()

    # ------------------------------------------------------------------------------------------ arrangement

    def _governed(self) -> dict[Stack, list[int]]:
        """Return which parameters each stack of sentences governs now."""
        governed = stacks_by_parameter(self.strategy, self.parameters.specs, self._met_conditions.__contains__)
        if not governed:
            raise ContractError("this model has sparse parameters only: distribute(..., sparse='dense') averages them")
        return governed

    def arrange(self) -> None:
        """Make partitions and messages for the current phase; partitions that continue keep their memory."""
        old = {(partition.stack, tuple(partition.members)): partition for partition in self.partitions}
        self.partitions = [
            old.get((stack, tuple(members))) or self._partition(stack, members)
            for stack, members in self._governed().items()
        ]
        self._optimizer_overrides.override(name for tier in self._tiers for name in takes_of(tier.compressor))
        factor_users = [s for s in self.partitions if takes_factors_of(s.tiers[0].compressor)]
        self._linear_factors.record(name for s in factor_users for name in s.context_for(s.tiers[0]).names)
        if self.parameters.sparse and (self.replicas_differ or not self.collective):
            raise ContractError(
                f"`{self.strategy}` takes whole parameters, and {self.parameters.sparse_names[0]!r} has sparse "
                "gradients, which are exchanged separately: pass sparse='dense' to distribute()"
            )
        if len(self._tiers) > 1 and any(tier.sync.replaces_step or tier.sync.steers for tier in self._tiers):
            does = "takes the place of optimizer.step()" if self.replaces_step else "sets batch or learning rate"
            raise ContractError(
                f"`{self.strategy}` has a rule that {does}, which it can only do for the whole model: write it as one "
                "sentence, without a map or tiers around it"
            )
        self._micro_batches = max(tier.sync.micro_batches for tier in self._tiers)
        if self._micro_batches > 1 and any(tier.sync.skips for tier in self._tiers):
            raise ContractError(
                f"`{self.strategy}` sums gradients over steps and skips others in each: add them up in one step, "
                "inside `with model.no_sync():`"
            )
        comm_planner = self.comm_planner
        comm_planner.arranged()
        parts = [
            PlannedPartition(s.plan(comm_planner.arrival, comm_planner.timing(s)), s.members, s.tiers)
            for s in self.partitions
        ]
        order = in_order(parts, comm_planner.arrival)
        self._deferred_weight_gradients.choose([part.members[k] for part in parts for k in part.plan.postponed])
        lane = self.worker.communication_stream(self.parameters.device)
        self.reducer = Reducer(
            self.parameters.dense, self.parameters.specs, parts, order, MultiModelOrder.of(self.worker), lane
        )

    def _partition(self, stack: Stack, members: list[int]) -> Partition:
        tiers = [
            Tier(
                sentence,
                self.group if level is None else self._levels[level],
                self._options.seed,
                self.worker,
                rate=self._rate,
                settings=self._optimizer_overrides.current_values,
                logged=self.logged,
                factors=self._linear_factors.take,
            )
            for sentence, level in stack
        ]
        for tier, (_, level) in zip(tiers, stack, strict=True):
            if not tier.architecture.collective:
                refuse_levels(level)
                tier.server = self.shards(tier, members).enter(self.worker)
            if tier.architecture.shares:
                share(self.worker, tier.group, [*(self.parameters.dense[i] for i in members), *self.parameters.sparse])
        return Partition(self, stack, members, tiers)

    def _rate(self) -> float:
        return 1.0 if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])

    def shards(self, tier: Tier, members: Sequence[int]) -> Shards:
        """Return a tier's parameter server for these parameters."""
        if self.optimizer is None:
            raise ContractError(
                f"`{tier.sentence}` has a server, which symmetric workers cannot price: use laconic.simulate"
            )
        name = self.address(tier, members)
        specs, parameters = [self.parameters.specs[i] for i in members], [self.parameters.dense[i] for i in members]
        return Shards(tier, name, specs, parameters, self.optimizer, self.group.ranks, self._description)

    def address(self, tier: Tier, members: Sequence[int]) -> str:
        """Return the address of the actors that serve these parameters for a tier."""
        return address_of(self._number, self.group.ranks, tier.sentence, members)

    @property
    def collective(self) -> bool:
        """Whether all workers are one process group."""
        return all(tier.architecture.collective for tier in self._tiers)

    @property
    def _tiers(self) -> list[Tier]:
        return [tier for partition in self.partitions for tier in partition.tiers]

    @property
    def late(self) -> bool:
        return any(tier.late for tier in self._tiers)

    @property
    def has_memory(self) -> bool:
        return any(tier.has_memory for tier in self._tiers)

    @property
    def replicas_differ(self) -> bool:
        return any(tier.sync.replicas_differ for tier in self._tiers)

    @property
    def replaces_step(self) -> bool:
        return any(tier.sync.replaces_step for tier in self._tiers)

    @property
    def plainly_synchronous(self) -> bool:
        """Whether every gradient is averaged uncompressed in every step, as a closure assumes."""
        compresses = any(t.compressor.accepts(spec) for t in self._tiers for spec in self.parameters.specs)
        return not self.late and not self.has_memory and not compresses and not self.replaces_step

    @property
    def accumulating(self) -> bool:
        """Whether gradients of several steps are being summed for a later exchange."""
        return self._accumulated_steps > 0

    def _only_accumulates(self) -> bool:
        """Return whether the backward of this step adds to the sum without exchanging it."""
        return (self.steps + 1) % self._micro_batches != 0

    # ------------------------------------------------------------------------------------------ backward

    def _draw_gradient_weights(self) -> None:
        """Ask the rules which gradients the coming step needs; those of the others are not computed."""
        weights: dict[int, float] = {}
        for partition in self.partitions:
            for tier in partition.tiers:
                if tier.sync.skips:
                    found = tier.sync.weights(partition.context_for(tier), tier.sync_state)
                    for i, weight in zip(partition.members, found, strict=True):
                        weights[i] = weights.get(i, 1.0) * weight
        self._skipped_gradients.decide(weights)

    def _begin(self) -> None:
        self.deferred_step.settle()  # has happened, unless this loss bypassed the model's forward
        self._in_backward = True
        self._nonfinite = None
        self.reducer.begin(self.steps, 1 / (self._accumulated_steps + 1), self._skipped_gradients.weights)
        self._early_broadcasts = [self._broadcast_buffers()] if self._defers_step() and self.collective else []
        timed = self.worker.times_gradients or self.comm_planner.times_gradients
        special = self._options.refuse_nonfinite or self.parameters.sparse or self._skipped_gradients.skipped
        self._plain_pass = not timed and not special

    def gradient_ready(self, i: int) -> None:
        """Handle the hook of parameter i: report the computation and send the messages that are now complete. This
        never waits."""
        if self._plain_pass:
            self._send(i)
            return
        if i in self._skipped_gradients.skipped:  # the script has switched it on again: it is ignored
            self.parameters.trainable[i].grad = None
            return
        self.worker.computed("backward", *self.parameters.share(i))
        self.comm_planner.gradient(i)
        dense = i < len(self.parameters.dense)
        if not self.syncing or self._only_accumulates():
            if dense:
                self.reducer.mark_local(i)
            return
        if not self._in_backward:
            if self._averaged and self.has_memory:
                raise ContractError(
                    f"a second backward() before step() would be remembered twice by `{self.strategy}`: accumulate "
                    "inside `with model.no_sync():` and let only the last backward of a step communicate"
                )
            self._begin()
        if self._options.refuse_nonfinite:
            self._check_finite(self.parameters.trainable[i])
        if dense:
            self._send(i)

    def _send(self, i: int) -> None:
        try:
            self.reducer.ready(i)
        except BaseException:
            self.reducer.abandon()  # other models of this process must not wait for this one to finish sending
            raise

    def backward_ended(self) -> None:
        """Send the rest, wait for the averages unless they are deferred, and make them the gradients."""
        self._deferred_weight_gradients.run()
        skipped = self._skipped_gradients.skipped
        for i in skipped:  # half of a layer's backward computes the gradient of its input
            self.worker.computed("backward", self.parameters.share(i)[0] / 2)
        without_gradients = skipped and not self._in_backward and self.syncing
        if without_gradients and self._skipped_gradients.some_are_needed(self.parameters.trainable):
            self._begin()  # this worker used skipped parameters only; others may wait for its zeros
        if not self._in_backward:
            return
        arrival = self.reducer.arrival
        abandoned, self._abandoned = self._abandoned, []
        try:
            communications = self.reducer.finish()
            exchanging = bool(communications or skipped)
            others = [InFlight(self._average_sparse(p)) for p in self.parameters.sparse] if exchanging else []
            if exchanging and self.collective:
                others += self._early_broadcasts or [self._broadcast_buffers()]
            if self._options.refuse_nonfinite:
                others.append(verdict := InFlight(self._agree_on_nonfinite()))
            deferred = self._defers_step()
            complete([*abandoned, *([] if deferred else communications), *others])
        except BaseException:
            self.reducer.forget()
            raise
        finally:
            self._in_backward = self._plain_pass = False
        self._averaged = True
        if deferred:
            self.deferred_step.defer(self.reducer)
        else:
            self.reducer.settle()
        if self._options.refuse_nonfinite and verdict.result:
            raise NonFinite(
                f"a gradient of step {self.steps} is NaN or infinite on at least one worker; lower the learning rate, "
                'clip gradients, or pass them on with distribute(..., nonfinite="pass")'
            )
        if communications and self.collective and not skipped:
            self.comm_planner.backward_ended(arrival)

    def _broadcast_buffers(self) -> InFlight:
        """Start broadcasting rank 0's buffers; this precedes gradients that are only waited for later."""
        return InFlight(broadcast_tensors(self.buffers(), [t.group for t in self._gradient_tiers()]))

    def _defers_step(self) -> bool:
        """Return whether messages may arrive after backward, since gates of the next forward pass wait for them."""
        gates = self.comm_planner.gates
        return gates is not None and gates.known and all(message.plan.gated for message in self.reducer.messages)

    def _on_abandoned(self) -> None:
        """Handle a backward pass that raised half-way: its messages are completed with the next pass; nothing waits
        here."""
        self._in_backward = self._plain_pass = False
        self._abandoned += self.reducer.abandon()
        self.arrange()  # new buffers: messages from the old ones are still in flight

    def _check_finite(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            nonfinite = values.detach().isfinite().all().logical_not()
            self._nonfinite = nonfinite if self._nonfinite is None else self._nonfinite.logical_or(nonfinite)

    def _agree_on_nonfinite(self) -> Communication[bool]:
        """Agree over all workers, whatever groups the gradients themselves are sent in, whether a gradient is not
        finite."""
        flag = torch.zeros(1, device=self.parameters.device)
        if self._nonfinite is not None:
            flag += self._nonfinite
        (total,) = yield [self.group.all_reduce(flag, "max", control=1.0)]
        return bool(total != 0)

    def _gradient_tiers(self) -> list[Tier]:
        """Return the tiers in which this step's gradients are averaged; buffers and sparse gradients use the same
        ones."""
        stacks = [[t for t in s.tiers if t.sync.averages_gradients(self.steps)] for s in self.partitions]
        return next((stack for stack in stacks if stack), [])

    def buffers(self) -> list[Tensor]:
        """Return the model's buffers."""
        found = (owner._buffers[name] for owner, name in self._buffer_owners)
        return [buffer for buffer in found if buffer is not None]

    def _average_sparse(self, parameter: nn.Parameter) -> Communication[None]:
        for tier in self._gradient_tiers():
            parameter.grad = yield from average_sparse(parameter, tier.architecture, tier.group)
        if self._accumulated_steps and parameter.grad is not None:
            parameter.grad = parameter.grad / (self._accumulated_steps + 1)

    # ------------------------------------------------------------------------------------------ step

    def step(self, apply: Callable[[], Any]) -> None:
        """Let the optimizer step (`apply`) unless a rule replaces the step; then let the rules communicate, and begin
        the next phase where its condition is met."""
        self.apply = scaled(apply, self.optimizer, self._rate_factor)
        replacing = self.replaces_step
        if self.deferred_step.pending and self.optimizer is not None:
            self.deferred_step.step(self.optimizer)
        elif not replacing:
            self.apply()
        self.worker.computed("step")
        for partition in self.partitions:
            for tier in partition.tiers:
                rule = tier.sync.stepping if replacing else tier.sync.after_step
                exchange = InFlight(rule(partition.context_for(tier), tier.sync_state))
                complete([exchange])
                tier.sync_state = exchange.result
        self._accumulated_steps = self._accumulated_steps + 1 if self._only_accumulates() else 0
        self.steps += 1
        self.gradients_dropped()
        if self.autotuner is not None:
            self.autotuner.step_ended()
        self.comm_planner.step_ended()
        self._advance_phases()
        self._draw_gradient_weights()

    def settle(self) -> None:
        """Complete what is in flight, and let workers whose models have diverged meet in their average."""
        self.deferred_step.settle()
        for partition in self.partitions:
            for tier in partition.tiers:
                exchange = InFlight(tier.sync.settle(partition.context_for(tier), tier.sync_state))
                complete([exchange])
                tier.sync_state = exchange.result

    def steer(self, batch: int | None, rate: float) -> None:
        """Set a rule's decision on the samples per worker and the factor of the learning rate."""
        self._batch, self._rate_factor = batch, rate
        set_batch(self.worker, batch)

    def logged(self, metric: str) -> float | None:
        """Return the value this worker last logged under a name since this session began, or None."""
        return metrics.latest(metric, since=self._logged_before)

    def gradients_dropped(self) -> None:
        """Note that the gradients were applied or zeroed, so that the next backward begins anew."""
        self._averaged = False

    def _advance_phases(self) -> None:
        """Begin the next phase where the condition that ends the current one is met."""
        met = [c for c in active_conditions(self.strategy, self._met_conditions) if self._holds(c)]
        if not met:
            return
        self._met_conditions.update(met)
        self._enter_phase()

    def switch_strategy(self, strategy: Strategy) -> None:
        """Continue with another strategy, as at the end of a phase."""
        self.strategy = strategy
        self._enter_phase()

    def _enter_phase(self) -> None:
        """Let the rules that govern nothing any more finish, and arrange those that govern now."""
        self.deferred_step.settle()
        self._accumulated_steps = 0  # an incomplete sum ends with its phase
        staying = self._governed().keys()
        for partition in self.partitions:
            if partition.stack not in staying:
                for tier in partition.tiers:
                    complete([InFlight(tier.sync.leave(partition.context_for(tier), tier.sync_state))])
        self.arrange()

    def _holds(self, condition: Condition) -> bool:
        """Return whether a phase is over; a metric is averaged over all workers so that they change phase together."""
        if isinstance(condition, StepCondition):
            return self.steps >= condition.step
        value = self.logged(condition.metric)
        vote = torch.tensor([0.0, 0.0] if value is None else [value, 1.0], dtype=torch.float64)
        total, voters = self.group.all_reduce(vote.to(self.parameters.device), control=1.0).wait().tolist()
        return voters > 0 and condition.holds(total / voters)

    def mean(self, value: float) -> float:
        """Return the mean of a number over all workers."""
        contribution = torch.tensor([value / self.group.size], dtype=torch.float64, device=self.parameters.device)
        return float(self.group.all_reduce(contribution, control=1.0).wait())

    def check_step(self) -> None:
        """Refuse a step on gradients that are not averages.

        A parameter that was frozen at `distribute` and trains now would silently differ between workers; and so would
        all of them if backward has not ended.
        """
        if self._in_backward:
            raise ContractError(
                "step() while a backward pass has not ended for laconic: call it after loss.backward(), not in a hook; "
                "on virtual workers call backward as a method or as torch.autograd.backward, by no name bound before"
            )
        for name, parameter in self.parameters.frozen:
            if parameter.requires_grad and parameter.grad is not None:
                raise ContractError(
                    f"{name!r} was frozen when distribute() was called and has a gradient now: it is not averaged. "
                    "Call laconic.undistribute, unfreeze it, and distribute again"
                )

    def close(self) -> None:
        """Detach from the model and leave the parameter servers, so that nobody waits there for this worker."""
        self.deferred_step.settle()
        self.reducer.abandon()
        self._hooks.remove()
        self._deferred_weight_gradients.remove()
        if self.comm_planner.gates is not None:
            self.comm_planner.gates.remove()
        self._skipped_gradients.release()
        self._optimizer_overrides.restore()
        self._linear_factors.release()
        complete([InFlight(tier.server.leave()) for tier in self._tiers if tier.server is not None])

    # ------------------------------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's own memory: what a checkpoint must hold beside model and optimizer.

        Communications in flight are completed first, on every worker alike, and their results are kept.
        """
        self.deferred_step.settle()
        complete([communication for tier in self._tiers for communication in tier.in_flight.values()])
        return {
            "steps": self.steps,
            "strategy": str(self.strategy),
            "passed": [str(c) for c in self.strategy.conditions() if c in self._met_conditions],
            "planning": self.comm_planner.state_dict(),
            "steered": (self._batch, self._rate_factor),
            "sections": saved_state(self.partitions),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps = state["steps"]
        if self.autotuner is not None:
            self.strategy = Strategy.parse(state["strategy"])
        self._met_conditions = {c for c in self.strategy.conditions() if str(c) in state["passed"]}
        self.comm_planner.load_state_dict(state["planning"])
        self.arrange()
        restore_state(self.partitions, state["sections"])
        self.steer(*state["steered"])
        self._draw_gradient_weights()

    def take_over(self, steps: int) -> None:
        """Continue after so many steps of another strategy, with the model as it is now and a memory of its own."""
        self.steps = steps
        self._met_conditions = {
            c for c in self.strategy.conditions() if isinstance(c, StepCondition) and steps >= c.step
        }
        self.partitions = []  # rules begin from the present parameters
        self.arrange()
        self._draw_gradient_weights()

    def redistribute_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over the states of another number of workers."""
        redistribute_state(self.partitions, [state["sections"] for state in states], self.group.rank, self.group.size)


_sessions: WeakKeyDictionary[Worker, Counter[tuple[int, ...]]] = WeakKeyDictionary()


def has_session(worker: Worker) -> bool:
    """Return whether this worker has made a session before, be it closed by now."""
    return worker in _sessions


def _next_session_number(worker: Worker, ranks: tuple[int, ...]) -> int:
    """Return how many sessions these workers have had before: the same number on each of them."""
    counts = _sessions.setdefault(worker, Counter())
    counts[ranks] += 1
    return counts[ranks] - 1
