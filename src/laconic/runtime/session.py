"""A session: a model, its optimizer and a strategy in training on one worker.

The session owns nothing of the user's: it observes the model through hooks, lets the reducer send gradients, and lets
the sync rules communicate after the optimizer has stepped. It knows no technique by name and no transport.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.compression.optional import takes_factors_of, takes_of
from laconic.errors import ContractError
from laconic.kernels.offload import synchronize
from laconic.runtime import metrics
from laconic.runtime.arrangement import NOBODY, Arrangement
from laconic.runtime.batch_size import set_batch
from laconic.runtime.bucket_uses import BucketReport
from laconic.runtime.comm_planner import Autotuner, CommPlanner
from laconic.runtime.cuts import Cuts
from laconic.runtime.deferred_step import DeferredStep
from laconic.runtime.gradient_exchange import GradientExchange, Progress
from laconic.runtime.gradient_source import MakeSource, autograd_source
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.learning_rate import scaled
from laconic.runtime.linear_factors import LinearFactors
from laconic.runtime.optimizer_overrides import OptimizerOverrides
from laconic.runtime.parameters import Parameters
from laconic.runtime.partition import Partition
from laconic.runtime.partition_state import redistribute_state, restore_state, saved_state
from laconic.runtime.reducer import Reducer
from laconic.runtime.server_setup import Shards, address_of, refuse_levels
from laconic.runtime.sharded.solo_group import SoloGroup
from laconic.runtime.shared_memory import share
from laconic.runtime.tiers import Stack, Tier
from laconic.strategy import Condition, StepCondition, Strategy
from laconic.worker import Group, Worker


@dataclass(frozen=True)
class Options:
    """The options of `distribute` beside the strategy."""

    refuse_nonfinite: bool = False
    gather_sparse: bool = True
    seed: int = 0


class Session:
    """One distributed model on one worker: what drives its steps.

    A source reports gradients to the gradient exchange, which sends them as the arrangement of the strategy says; the
    session lets the optimizer step and the rules communicate, begins phases, and saves it all.
    """

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
        source: MakeSource = autograd_source,
        cuts: Cuts | None = None,
    ) -> None:
        self.worker, self.model, self.group = worker, model, group
        self.optimizer = optimizer  # the user's own
        self._description = dict(description or {})
        self._number = _next_session_number(worker, group.ranks)
        self.noted: dict[str, float] = {}  # numbers that rules report about themselves: a staleness, a period
        self.apply: Callable[[], Any] = lambda: None
        self._levels, self._options = levels, options
        self.cuts = cuts or Cuts()
        self._rate_factor = 1.0
        self._batch: int | None = None
        self.autotuner: Autotuner | None = None  # where the strategy is `auto`
        self._logged_before = metrics.serial()
        self.progress = Progress()
        self.parameters = Parameters.of(model, options.gather_sparse)
        self.arrangement = Arrangement(strategy, self.parameters, self._takes_part, self.cuts.ranks)
        self.comm_planner = CommPlanner(self)
        self.deferred_step = DeferredStep(self.parameters.dense)
        self._optimizer_overrides = OptimizerOverrides(optimizer)
        self._linear_factors = LinearFactors(model)
        self.gradients = GradientExchange(
            worker,
            self.cuts.agreeing([group]),
            model,
            self.parameters,
            self.arrangement,
            self.comm_planner,
            self.deferred_step,
            self.progress,
            options.refuse_nonfinite,
            self.arrange,
        )
        self.arrange()
        self._source = source(worker, model, self.parameters.trainable, self.gradients)
        self._step_share = 1.0
        self._prepare_pass()

    def take_gradients_from(self, source: MakeSource, step_share: float) -> None:
        """Let another source report gradients from now on, which tells a clock itself how far the passes have come;
        `step_share` is what the clock adds for a step, in those of a whole model."""
        self._source.remove()
        self.gradients.timed_elsewhere, self._step_share = True, step_share
        self._source = source(self.worker, self.model, self.parameters.trainable, self.gradients)
        self._prepare_pass()

    def _prepare_pass(self) -> None:
        """Choose whether the coming pass reports gradients, and which ones it computes."""
        self._source.report_gradients(self.gradients.wants_gradients)  # first: what is skipped can have no new hook
        self.gradients.choose_gradients()

    # ------------------------------------------------------------------------------------------ arrangement

    @property
    def strategy(self) -> Strategy:
        return self.arrangement.strategy

    @property
    def partitions(self) -> list[Partition]:
        return self.arrangement.partitions

    @property
    def reducer(self) -> Reducer:
        return self.gradients.reducer

    @property
    def steps(self) -> int:
        return self.progress.steps

    @property
    def syncing(self) -> bool:
        """Whether gradients are sent, which they are not inside `no_sync`."""
        return self.progress.syncing

    @syncing.setter
    def syncing(self, wanted: bool) -> None:
        self.progress.syncing = wanted

    def buffers(self) -> list[Tensor]:
        """Return the model's buffers."""
        return self.gradients.buffers()

    def arrange(self) -> None:
        """Make partitions and messages for the current phase; partitions that continue keep their memory."""
        self.arrangement.renew(self._partition)
        self._optimizer_overrides.override(name for t in self.arrangement.tiers for name in takes_of(t.compressor))
        factor_users = [s for s in self.partitions if takes_factors_of(s.tiers[0].compressor)]
        self._linear_factors.record(name for s in factor_users for name in s.context_for(s.tiers[0]).names)
        self.gradients.plan()

    def _group_at(self, level: str | None) -> Group:
        """Return the group that a tier spans."""
        if level == NOBODY:
            return SoloGroup(self.worker.rank, self.worker.ledger)
        return self.group if level is None else self._levels[level]

    def _takes_part(self, name: str, level: str | None) -> bool:
        """Return whether a parameter is averaged at a level: not where the workers there have parts of it."""
        return not self.cuts or self.cuts.is_whole(name, self._group_at(level))

    def _partition(self, stack: Stack, members: list[int], number: int) -> Partition:
        tiers = [
            Tier(
                sentence,
                self._group_at(level),
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
        return Partition(self, stack, members, tiers, number)

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
    def accumulating(self) -> bool:
        """Whether gradients of several steps are being summed for a later exchange."""
        return self.progress.accumulated_steps > 0

    # ------------------------------------------------------------------------------------------ step

    def step(self, apply: Callable[[], Any]) -> None:
        """Let the optimizer step (`apply`) unless a rule replaces the step; then let the rules communicate, and begin
        the next phase where its condition is met."""
        self.apply = scaled(apply, self.optimizer, self._rate_factor)
        replacing = self.arrangement.replaces_step
        if self.deferred_step.pending and self.optimizer is not None:
            self.deferred_step.step(self.optimizer)
        elif not replacing:
            self.apply()
        self.worker.computed("step", self._step_share)
        for partition in self.partitions:
            for tier in partition.tiers:
                rule = tier.sync.stepping if replacing else tier.sync.after_step
                exchange = InFlight(rule(partition.context_for(tier), tier.sync_state))
                complete([exchange])
                tier.sync_state = exchange.result
        summing = self.gradients.only_accumulates
        self.progress.accumulated_steps = self.progress.accumulated_steps + 1 if summing else 0
        self.progress.steps += 1
        self.gradients_dropped()
        if self.autotuner is not None:
            self.autotuner.step_ended()
        self.comm_planner.step_ended()
        if self.arrangement.advance(self._holds):
            self._enter_phase()
        self._prepare_pass()

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

    def forward_left(self) -> float:
        """Return the share of a forward pass that is reported to the clock when it has ended."""
        return 1.0

    def gradients_dropped(self) -> None:
        """Note that the gradients were applied or zeroed, so that the next backward begins anew."""
        self.gradients.averaged = False

    def bucket_reports(self) -> list[BucketReport]:
        """Return how each compressed bucket of the present arrangement has been exchanged so far: as a whole or tensor
        by tensor, as CUDA graphs or not, and which hot loops plain torch computed."""
        return [report for tier in self.arrangement.tiers for report in tier.whole.reports()]

    def switch_strategy(self, strategy: Strategy) -> None:
        """Continue with another strategy, as at the end of a phase."""
        self.arrangement.strategy = strategy
        self._enter_phase()

    def _enter_phase(self) -> None:
        """Let the rules that govern nothing any more finish, and arrange those that govern now."""
        self.deferred_step.settle()
        self.progress.accumulated_steps = 0  # an incomplete sum ends with its phase
        for partition in self.arrangement.leaving():
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
        if self.gradients.in_backward:
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
        self._source.remove()
        self.gradients.close()
        if self.comm_planner.gates is not None:
            self.comm_planner.gates.remove()
        self._optimizer_overrides.restore()
        self._linear_factors.release()
        complete([InFlight(tier.server.leave()) for tier in self.arrangement.tiers if tier.server is not None])

    # ------------------------------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's own memory: what a checkpoint must hold beside model and optimizer.

        Communications in flight are completed first, on every worker alike, and their results are kept.
        """
        self.deferred_step.settle()
        complete([communication for tier in self.arrangement.tiers for communication in tier.in_flight.values()])
        synchronize(self.parameters.device)  # what is offloaded may be on its way to the host
        return {
            "steps": self.steps,
            "strategy": str(self.strategy),
            "passed": self.arrangement.passed,
            "planning": self.comm_planner.state_dict(),
            "steered": (self._batch, self._rate_factor),
            "sections": saved_state(self.partitions),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        synchronize(self.parameters.device)
        self.progress.steps = state["steps"]
        if self.autotuner is not None:
            self.arrangement.strategy = Strategy.parse(state["strategy"])
        self.arrangement.passed = state["passed"]
        self.comm_planner.load_state_dict(state["planning"])
        self.arrange()
        restore_state(self.partitions, state["sections"])
        self.steer(*state["steered"])
        self._prepare_pass()

    @property
    def saves_beside(self) -> bool:
        """Whether model and optimizer are saved by all workers together, beside what each of them remembers."""
        return False

    def save_beside(self, folder: Path) -> None:
        """Save model and optimizer in a checkpoint's folder, where all workers do that together."""

    def load_beside(self, folder: Path) -> None:
        """Load what `save_beside` has saved."""

    def take_over(self, steps: int) -> None:
        """Continue after so many steps of another strategy, with the model as it is now and a memory of its own."""
        self.progress.steps = steps
        self.arrangement.pass_steps(steps)
        self.arrangement.forget()
        self.arrange()
        self._prepare_pass()

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Return whether as many workers as here saved a state in the same arrangement, so that it can be loaded as it
        is; otherwise `redistribute_state` follows."""
        return True

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
