"""A model, its optimizer and a strategy at work on one worker.

The session owns nothing of the user's: it listens to the model through hooks, lets the reducer carry gradients, and
lets the sync rules speak after the optimizer has stepped. It knows no technique by name and no transport.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
from laconic.runtime.partition_state import restore_state, saved_state, share_out
from laconic.runtime.reducer import Reducer
from laconic.runtime.server_shards import Shards, address_of, refuse_levels
from laconic.runtime.shared_memory import share
from laconic.runtime.skipped_gradients import SkippedGradients
from laconic.runtime.sparse_gradients import average_sparse
from laconic.runtime.tiers import Stack, Tier, active_conditions, stacks_by_parameter
from laconic.strategy import Condition, StepCondition, Strategy
from laconic.worker import Group, Worker


@dataclass(frozen=True)
class Options:
    """What `distribute` was told beside the strategy."""

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
        self._number = _count(worker, group.ranks)
        self.noted: dict[str, float] = {}  # what rules say of themselves: a staleness, a period
        self.apply: Callable[[], Any] = lambda: None
        self._levels, self._options = levels, options
        self._in_backward = False
        self._averaged = False
        self._summed = 0  # steps whose gradients wait in p.grad for a later one's
        self._rate_factor = 1.0
        self._batch: int | None = None
        self._nonfinite: Tensor | None = None
        self._leftovers: list[InFlight] = []
        self._ahead: list[InFlight] = []
        self.autotuner: Autotuner | None = None  # where the strategy is `auto`
        self._logged_before = metrics.serial()
        self.parameters = Parameters.of(model, options.gather_sparse)
        self.comm_planner = CommPlanner(self)
        self.deferred_step = DeferredStep(self.parameters.dense)
        self._deferred_weight_gradients = DeferredWeightGradients(model, self.parameters.trainable, self.gradient_ready)
        self._passed: set[Condition] = set()
        self._buffer_homes = [(m, name) for m in model.modules() for name, _ in m.named_buffers(recurse=False)]
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
        self._weigh()

    # ------------------------------------------------------------------------------------------ arrangement

    def _governed(self) -> dict[Stack, list[int]]:
        """Who governs which parameter now."""
        governed = stacks_by_parameter(self.strategy, self.parameters.specs, self._passed.__contains__)
        if not governed:
            raise ContractError("this model has sparse parameters only: distribute(..., sparse='dense') averages them")
        return governed

    def arrange(self) -> None:
        """Make sections and messages for the current phase; sections that go on keep their memory."""
        old = {(partition.stack, tuple(partition.members)): partition for partition in self.partitions}
        self.partitions = [
            old.get((stack, tuple(members))) or self._partition(stack, members)
            for stack, members in self._governed().items()
        ]
        self._optimizer_overrides.take(name for tier in self._tiers for name in tier.compressor.takes)
        takers = [s for s in self.partitions if s.tiers[0].compressor.takes_factors]
        self._linear_factors.listen(name for s in takers for name in s.context_for(s.tiers[0]).names)
        if self.parameters.sparse and (self.replicas_differ or not self.collective):
            raise ContractError(
                f"`{self.strategy}` takes whole parameters, and {self.parameters.sparse_names[0]!r} has sparse "
                "gradients that travel apart: pass sparse='dense' to distribute()"
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
        self.reducer = Reducer(
            self.parameters.dense, self.parameters.specs, parts, order, MultiModelOrder.of(self.worker)
        )

    def _partition(self, stack: Stack, members: list[int]) -> Partition:
        tiers = [
            Tier(
                sentence,
                self.group if level is None else self._levels[level],
                self._options.seed,
                self.worker,
                rate=self._rate,
                settings=self._optimizer_overrides.now,
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
        """A tier's parameter server for these parameters."""
        if self.optimizer is None:
            raise ContractError(f"`{tier.sentence}` has a server, which a crowd cannot price: use laconic.simulate")
        name = self.address(tier, members)
        specs, parameters = [self.parameters.specs[i] for i in members], [self.parameters.dense[i] for i in members]
        return Shards(tier, name, specs, parameters, self.optimizer, self.group.ranks, self._description)

    def address(self, tier: Tier, members: Sequence[int]) -> str:
        """Under which a tier's machines for these parameters are found."""
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
        """Every gradient is averaged as it is in every step: what a closure assumes."""
        compresses = any(t.compressor.accepts(spec) for t in self._tiers for spec in self.parameters.specs)
        return not self.late and not self.has_memory and not compresses and not self.replaces_step

    @property
    def summing(self) -> bool:
        """Whether gradients are now being added up, step by step, for a later one's exchange."""
        return self._summed > 0

    def _only_adds(self) -> bool:
        """Whether the backward of this step adds to the sum without exchanging it."""
        return (self.steps + 1) % self._micro_batches != 0

    # ------------------------------------------------------------------------------------------ backward

    def _weigh(self) -> None:
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
        self.deferred_step.settle()  # has happened, unless this loss came by without the model's forward
        self._in_backward = True
        self._nonfinite = None
        self.reducer.begin(self.steps, 1 / (self._summed + 1), self._skipped_gradients.weights)
        self._ahead = [self._buffers_spread()] if self._held() and self.collective else []

    def gradient_ready(self, i: int) -> None:
        if i in self._skipped_gradients.skipped:  # the script has switched it on again: it does not count
            self.parameters.trainable[i].grad = None
            return
        self.worker.computed("backward", *self.parameters.share(i))
        self.comm_planner.gradient(i)
        dense = i < len(self.parameters.dense)
        if not self.syncing or self._only_adds():
            if dense:
                self.reducer.mark_local(i)
            return
        if not self._in_backward:
            if self._averaged and self.has_memory:
                raise ContractError(
                    f"a second backward() before step() would be remembered twice by `{self.strategy}`: accumulate "
                    "inside `with model.no_sync():` and let only the last backward of a step talk"
                )
            self._begin()
        if self._options.refuse_nonfinite:
            self._look_at(self.parameters.trainable[i])
        if dense:
            try:
                self.reducer.ready(i)
            except BaseException:
                self.reducer.abandon()  # other models of this process must not wait for its turn to end
                raise

    def backward_ended(self) -> None:
        self._deferred_weight_gradients.run()
        skipped = self._skipped_gradients.skipped
        for i in skipped:  # of a layer's backward, half is the gradient of its input
            self.worker.computed("backward", self.parameters.share(i)[0] / 2)
        silent = skipped and not self._in_backward and self.syncing
        if silent and self._skipped_gradients.some_are_needed(self.parameters.trainable):
            self._begin()  # all that this worker has used is skipped; others may wait for its zeros
        if not self._in_backward:
            return
        arrival = self.reducer.arrival
        leftovers, self._leftovers = self._leftovers, []
        try:
            communications = self.reducer.finish()
            travels = bool(communications or skipped)
            extras = [InFlight(self._average_sparse(p)) for p in self.parameters.sparse] if travels else []
            if travels and self.collective:
                extras += self._ahead or [self._buffers_spread()]
            if self._options.refuse_nonfinite:
                extras.append(verdict := InFlight(self._agree_on_nonfinite()))
            held = self._held()
            complete([*leftovers, *([] if held else communications), *extras])
        except BaseException:
            self.reducer.forget()
            raise
        finally:
            self._in_backward = False
        self._averaged = True
        if held:
            self.deferred_step.hold(self.reducer)
        else:
            self.reducer.settle()
        if self._options.refuse_nonfinite and verdict.result:
            raise NonFinite(
                f"a gradient of step {self.steps} is NaN or infinite on at least one worker; lower the learning rate, "
                'clip gradients, or pass them on with distribute(..., nonfinite="pass")'
            )
        if communications and self.collective and not skipped:
            self.comm_planner.backward_ended(arrival)

    def _buffers_spread(self) -> InFlight:
        """Rank 0's buffers for everybody; ahead of gradients for which nobody will wait."""
        return InFlight(broadcast_tensors(self.buffers(), [t.group for t in self._gradient_tiers()]))

    def _held(self) -> bool:
        """Whether what has left may arrive after backward, since gates of the next forward pass wait for it."""
        gates = self.comm_planner.gates
        return gates is not None and gates.known and all(message.plan.gated for message in self.reducer.messages)

    def _on_abandoned(self) -> None:
        """A backward pass raised half-way. What left still arrives, with the next pass; nothing waits here."""
        self._in_backward = False
        self._leftovers += self.reducer.abandon()
        self.arrange()  # new buffers: the old ones are still on their way

    def _look_at(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            bad = values.detach().isfinite().all().logical_not()
            self._nonfinite = bad if self._nonfinite is None else self._nonfinite.logical_or(bad)

    def _agree_on_nonfinite(self) -> Generator[Any, Any, bool]:
        """One number over everybody, whatever groups the gradients themselves travel in."""
        flag = torch.zeros(1, device=self.parameters.device)
        if self._nonfinite is not None:
            flag += self._nonfinite
        (total,) = yield [self.group.all_reduce(flag, "max", control=1.0)]
        return bool(total != 0)

    def _gradient_tiers(self) -> list[Tier]:
        """The tiers over which this step's gradients travel; buffers and sparse gradients go the same way."""
        stacks = [[t for t in s.tiers if t.sync.averages_gradients(self.steps)] for s in self.partitions]
        return next((stack for stack in stacks if stack), [])

    def buffers(self) -> list[Tensor]:
        found = (home._buffers[name] for home, name in self._buffer_homes)
        return [buffer for buffer in found if buffer is not None]

    def _average_sparse(self, parameter: nn.Parameter) -> Generator[Any, Any, None]:
        for tier in self._gradient_tiers():
            parameter.grad = yield from average_sparse(parameter, tier.architecture, tier.group)
        if self._summed and parameter.grad is not None:
            parameter.grad = parameter.grad / (self._summed + 1)

    # ------------------------------------------------------------------------------------------ step

    def step(self, apply: Callable[[], Any]) -> None:
        """The optimizer steps (`apply`) unless a rule does so in its own way; then the rules speak, and the next phase
        may begin."""
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
                speaking = InFlight(rule(partition.context_for(tier), tier.sync_state))
                complete([speaking])
                tier.sync_state = speaking.result
        self._summed = self._summed + 1 if self._only_adds() else 0
        self.steps += 1
        self.gradients_dropped()
        if self.autotuner is not None:
            self.autotuner.step_ended()
        self.comm_planner.step_ended()
        self._turn_phases()
        self._weigh()

    def settle(self) -> None:
        """What is under way arrives, and workers that have drifted apart meet."""
        self.deferred_step.settle()
        for partition in self.partitions:
            for tier in partition.tiers:
                settling = InFlight(tier.sync.settle(partition.context_for(tier), tier.sync_state))
                complete([settling])
                tier.sync_state = settling.result

    def steer(self, batch: int | None, rate: float) -> None:
        """A rule has decided on the samples per worker and on what multiplies the learning rate."""
        self._batch, self._rate_factor = batch, rate
        set_batch(self.worker, batch)

    def logged(self, metric: str) -> float | None:
        """What this worker last logged under a name, since this session began."""
        return metrics.latest(metric, since=self._logged_before)

    def gradients_dropped(self) -> None:
        """The gradients were applied or zeroed: the next backward begins anew."""
        self._averaged = False

    def _turn_phases(self) -> None:
        passed = [c for c in active_conditions(self.strategy, self._passed) if self._holds(c)]
        if not passed:
            return
        self._passed.update(passed)
        self._turn()

    def become(self, strategy: Strategy) -> None:
        """Go on with another strategy, as at the end of a phase."""
        self.strategy = strategy
        self._turn()

    def _turn(self) -> None:
        """What governs nothing any more takes its leave, and what governs now is arranged."""
        self.deferred_step.settle()
        self._summed = 0  # a sum that is not complete goes with its phase
        staying = self._governed().keys()
        for partition in self.partitions:
            if partition.stack not in staying:
                for tier in partition.tiers:
                    complete([InFlight(tier.sync.leave(partition.context_for(tier), tier.sync_state))])
        self.arrange()

    def _holds(self, condition: Condition) -> bool:
        """Whether a phase is over; a metric is averaged over all workers so that they turn together."""
        if isinstance(condition, StepCondition):
            return self.steps >= condition.step
        value = self.logged(condition.metric)
        vote = torch.tensor([0.0, 0.0] if value is None else [value, 1.0], dtype=torch.float64)
        total, voters = self.group.all_reduce(vote.to(self.parameters.device), control=1.0).wait().tolist()
        return voters > 0 and condition.holds(total / voters)

    def mean(self, value: float) -> float:
        """A number's mean over all workers."""
        there = torch.tensor([value / self.group.size], dtype=torch.float64, device=self.parameters.device)
        return float(self.group.all_reduce(there, control=1.0).wait())

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
                    f"{name!r} was frozen when distribute() was called and has a gradient now: its average is nobody's "
                    "job. Call laconic.undistribute, unfreeze it, and distribute again"
                )

    def close(self) -> None:
        """Let go of the model; servers are told, so that nobody waits there for this worker."""
        self.deferred_step.settle()
        self.reducer.abandon()
        self._hooks.remove()
        self._deferred_weight_gradients.remove()
        if self.comm_planner.gates is not None:
            self.comm_planner.gates.remove()
        self._skipped_gradients.release()
        self._optimizer_overrides.give_back()
        self._linear_factors.release()
        complete([InFlight(tier.server.leave()) for tier in self._tiers if tier.server is not None])

    # ------------------------------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """This worker's own memory: what a checkpoint must hold beside model and optimizer.

        What is under way arrives first, on every worker alike, and is kept as what it brought.
        """
        self.deferred_step.settle()
        complete([flight for tier in self._tiers for flight in tier.in_flight.values()])
        return {
            "steps": self.steps,
            "strategy": str(self.strategy),
            "passed": [str(c) for c in self.strategy.conditions() if c in self._passed],
            "planning": self.comm_planner.state_dict(),
            "steered": (self._batch, self._rate_factor),
            "sections": saved_state(self.partitions),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        if self.autotuner is not None:
            self.strategy = Strategy.parse(state["strategy"])
        self._passed = {c for c in self.strategy.conditions() if str(c) in state["passed"]}
        self.comm_planner.load_state_dict(state["planning"])
        self.arrange()
        restore_state(self.partitions, state["sections"])
        self.steer(*state["steered"])
        self._weigh()

    def share_out(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over from another number of workers."""
        share_out(self.partitions, [state["sections"] for state in states], self.group.rank, self.group.size)


_sessions: WeakKeyDictionary[Worker, Counter[tuple[int, ...]]] = WeakKeyDictionary()


def _count(worker: Worker, ranks: tuple[int, ...]) -> int:
    """The how-manieth session of these workers it is: the same number on each of them."""
    counts = _sessions.setdefault(worker, Counter())
    counts[ranks] += 1
    return counts[ranks] - 1
