"""A model, its optimizer and a strategy at work on one worker.

The session owns nothing of the user's: it listens to the model through hooks, lets the reducer carry gradients, and
lets the sync rules speak after the optimizer has stepped. It knows no technique by name and no transport.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laconic.compression.none import Identity
from laconic.engine import metrics
from laconic.engine.exchange import Departed, confer, drive
from laconic.engine.hooks import BackwardHooks
from laconic.engine.meeting import Meeting
from laconic.engine.parameters import Parameters
from laconic.engine.reducer import Reducer
from laconic.engine.replicate import broadcast_tensors
from laconic.engine.sparse import average_sparse
from laconic.engine.tiers import Stack, Tier, stack_for
from laconic.errors import ContractError
from laconic.schedule.plan import Message
from laconic.strategy import MetricCondition, StepCondition, Strategy
from laconic.worker import Group, Handle, Worker


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
    ) -> None:
        self.worker, self.model, self.strategy, self.group = worker, model, strategy, group
        self.steps = 0
        self.syncing = True
        self._levels, self._options = levels, options
        self._in_backward = False
        self._averaged = False
        self._observed_arrival = False
        self.parameters = Parameters.of(model, options.gather_sparse)
        self._arrival = list(reversed(range(len(self.parameters.dense))))
        self._passed: set[StepCondition | MetricCondition] = set()
        self._buffer_homes = [(m, name) for m in model.modules() for name, _ in m.named_buffers(recurse=False)]
        self._arrange()
        self._hooks = BackwardHooks(
            worker,
            model,
            [*self.parameters.dense, *self.parameters.sparse],
            lambda: worker.computed("forward"),
            self._on_gradient,
            self._on_end_of_backward,
            self._on_abandoned,
        )

    # ------------------------------------------------------------------------------------------ arrangement

    def _arrange(self) -> None:
        """Work out who governs which parameter now, and the messages that follow."""
        specs = self.parameters.specs
        governed: dict[Stack, list[int]] = {}
        for i in self._arrival:
            governed.setdefault(stack_for(self.strategy, specs[i], self._passed.__contains__), []).append(i)
        if not governed:
            raise ContractError("this model has sparse parameters only: distribute(..., sparse='dense') averages them")
        old = {section.stack: section for section in getattr(self, "sections", [])}
        self.sections = [old.get(stack) or self._section(stack) for stack in governed]
        messages: list[tuple[Message, Sequence[Tier]]] = []
        for section, members in zip(self.sections, governed.values(), strict=True):
            section.members = sorted(members)
            local = {i: k for k, i in enumerate(section.members)}
            plan = section.tiers[0].schedule.plan(
                [specs[i] for i in section.members], [local[i] for i in self._arrival if i in local]
            )
            for message in plan.messages:
                carried = tuple(section.members[k] for k in message.tensors)
                messages.append((Message(carried, message.leaves), section.tiers))
        place = {i: k for k, i in enumerate(self._arrival)}
        messages.sort(key=lambda pair: place[pair[0].tensors[0]])
        self.reducer = Reducer(self.parameters.dense, specs, messages, self._options.refuse_nonfinite)

    def _section(self, stack: Stack) -> Section:
        tiers = [
            Tier(sentence, self.group if level is None else self._levels[level], self._options.seed)
            for sentence, level in stack
        ]
        section = Section(self, stack, tiers)
        for tier in tiers:
            tier.sync_state = tier.sync.init(section.seen_by(tier))
        return section

    @property
    def late(self) -> bool:
        return any(tier.late for section in self.sections for tier in section.tiers)

    @property
    def has_memory(self) -> bool:
        return any(tier.has_memory for section in self.sections for tier in section.tiers)

    @property
    def replicas_differ(self) -> bool:
        return any(tier.sync.replicas_differ for section in self.sections for tier in section.tiers)

    @property
    def plainly_synchronous(self) -> bool:
        """Every gradient is averaged in every step and nothing is remembered: what closures and DDP assume."""
        return not self.late and not self.has_memory

    # ------------------------------------------------------------------------------------------ backward

    def _on_gradient(self, i: int) -> None:
        self.worker.computed("backward", *self.parameters.share(i))
        if not self.syncing:
            self.reducer.touch(i) if i < len(self.parameters.dense) else None
            return
        if not self._in_backward:
            if self._averaged and self.has_memory:
                raise ContractError(
                    f"a second backward() before step() would be remembered twice by `{self.strategy}`: accumulate "
                    "inside `with model.no_sync():` and let only the last backward of a step talk"
                )
            self._in_backward = True
            self.reducer.begin(self.steps)
        if i < len(self.parameters.dense):
            self.reducer.ready(i)

    def _on_end_of_backward(self) -> None:
        if not self._in_backward:
            return
        arrival = self.reducer.arrival
        try:
            journeys = self.reducer.finish()
            if journeys:
                sparse = [Departed(self._average_sparse(p)) for p in self.parameters.sparse]
                groups = self._gradient_groups()
                buffers = Departed(broadcast_tensors(self._buffers(), groups))
                drive([*journeys, *sparse, buffers])
        except BaseException:
            self.reducer.forget()
            raise
        finally:
            self._in_backward = False
        self._averaged = True
        self.reducer.settle()
        if journeys and not self._observed_arrival:
            self._observe(arrival)

    def _on_abandoned(self) -> None:
        self._in_backward = False
        self.reducer.abandon()

    def _gradient_tiers(self) -> list[Tier]:
        """The tiers over which this step's gradients travel; buffers and sparse gradients go the same way."""
        stacks = [[t for t in s.tiers if t.sync.averages_gradients(self.steps)] for s in self.sections]
        return next((stack for stack in stacks if stack), [])

    def _gradient_groups(self) -> list[Group]:
        return [tier.group for tier in self._gradient_tiers()]

    def _buffers(self) -> list[Tensor]:
        return [home._buffers[name] for home, name in self._buffer_homes if home._buffers[name] is not None]  # type: ignore[misc]

    def _average_sparse(self, parameter: nn.Parameter) -> Generator[Any, Any, None]:
        for tier in self._gradient_tiers():
            parameter.grad = yield from average_sparse(parameter, tier.architecture, tier.group)

    def _observe(self, arrival: list[int]) -> None:
        """After the first backward, plan again from the order in which rank 0's gradients really came."""
        self._observed_arrival = True
        seen = dict.fromkeys(arrival)
        order = torch.tensor([*seen, *(i for i in self._arrival if i not in seen)], device=self.parameters.device)
        drive([Departed(broadcast_tensors([order], [self.group], control=1.0))])
        if order.tolist() != self._arrival:
            self._arrival = order.tolist()
            self._arrange()

    # ------------------------------------------------------------------------------------------ step

    def after_step(self) -> None:
        """The optimizer has stepped: sync rules speak, then the next phase may begin."""
        self.worker.computed("step")
        for section in self.sections:
            for tier in section.tiers:
                speaking = Departed(tier.sync.after_step(section.seen_by(tier), tier.sync_state))
                drive([speaking])
                tier.sync_state = speaking.result
        self.steps += 1
        self._averaged = False
        self._turn_phases()

    def _turn_phases(self) -> None:
        pending = [c for c in self.strategy.conditions() if c not in self._passed]
        passed = [c for c in pending if self._holds(c)]
        if passed:
            self._passed.update(passed)
            self._arrange()

    def _holds(self, condition: StepCondition | MetricCondition) -> bool:
        """Whether a phase is over; a metric is averaged over all workers so that they turn together."""
        if isinstance(condition, StepCondition):
            return self.steps >= condition.step
        value = metrics.latest(condition.metric)
        vote = torch.tensor([0.0, 0.0] if value is None else [value, 1.0], dtype=torch.float64)
        total, voters = self.group.all_reduce(vote.to(self.parameters.device), control=1.0).wait().tolist()
        return voters > 0 and condition.holds(total / voters)

    def check_unfrozen(self) -> None:
        """A parameter that was frozen at `distribute` and trains now would silently differ between workers."""
        for name, parameter in self.parameters.frozen:
            if parameter.requires_grad and parameter.grad is not None:
                raise ContractError(
                    f"{name!r} was frozen when distribute() was called and has a gradient now: its average is nobody's "
                    "job. Call laconic.undistribute, unfreeze it, and distribute again"
                )

    def close(self) -> None:
        self._hooks.remove()

    # ------------------------------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """This worker's own memory: what a checkpoint must hold beside model and optimizer."""
        return {
            "steps": self.steps,
            "strategy": str(self.strategy),
            "passed": [str(c) for c in self.strategy.conditions() if c in self._passed],
            "memory": [[tier.memory for tier in section.tiers] for section in self.sections],
            "sync": [[tier.sync_state for tier in section.tiers] for section in self.sections],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        self._passed = {c for c in self.strategy.conditions() if str(c) in state["passed"]}
        self._arrange()
        for section, memories, syncs in zip(self.sections, state["memory"], state["sync"], strict=True):
            for tier, memory, sync_state in zip(section.tiers, memories, syncs, strict=True):
                tier.memory, tier.sync_state = memory, sync_state

    def share_out(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over from another number of workers: error memories go round-robin, so that their sum is conserved."""
        mine = range(self.group.rank, len(states), self.group.size)
        for s, section in enumerate(self.sections):
            for t, tier in enumerate(section.tiers):
                for name, memory in tier.memory.items():
                    for key in memory.keys() & set(tier.compressor.conserved):
                        zero = torch.zeros_like(memory[key])
                        memory[key] = sum((states[r]["memory"][s][t][name][key] for r in mine), start=zero)


class Section:
    """The parameters that share one stack of sentences."""

    def __init__(self, session: Session, stack: Stack, tiers: list[Tier]) -> None:
        self.session, self.stack, self.tiers = session, stack, tiers
        self.members: list[int] = []

    def seen_by(self, tier: Tier) -> SectionView:
        return SectionView(self, tier)


@dataclass(frozen=True)
class SectionView:
    """What a sync rule of one tier sees and may do."""

    section: Section
    tier: Tier

    @property
    def parameters(self) -> list[Tensor]:
        return [self.section.session.parameters.dense[i] for i in self.section.members]

    @property
    def group(self) -> Group:
        return self.tier.group

    @property
    def step(self) -> int:
        return self.section.session.steps

    def average(self, tensors: list[Tensor]) -> Generator[list[Handle], Any, list[Tensor]]:
        specs = [self.section.session.parameters.specs[i] for i in self.section.members]
        tier, dense = self.tier, Identity()
        exchanges = [
            tier.exchange(spec, x, self.step)
            if tier.compressor.accepts(spec)
            else dense.exchange(x, {}, Meeting(tier.group.rank, tier.group.size, self.step, spec.name))
            for spec, x in zip(specs, tensors, strict=True)
        ]
        outcomes = yield from confer(exchanges, lambda request: tier.architecture.carry(request, tier.group))
        for spec, outcome in zip(specs, outcomes, strict=True):
            if tier.compressor.accepts(spec):
                tier.memory[spec.name] = outcome.state
        return [outcome.result.view(spec.shape) for spec, outcome in zip(specs, outcomes, strict=True)]


class NoSync:
    """`model.no_sync()`: gradients of backward passes inside stay local and add up. Copies of the model get a no-op."""

    def __init__(self, session: Session | None = None) -> None:
        self.session = session

    def __call__(self) -> _Quiet:
        return _Quiet(self.session)

    def __reduce__(self) -> tuple[Callable[[], NoSync], tuple[()]]:
        return NoSync, ()


class _Quiet:
    def __init__(self, session: Session | None) -> None:
        self._session = session

    def __enter__(self) -> None:
        if self._session is not None:
            self._before, self._session.syncing = self._session.syncing, False

    def __exit__(self, *exc: object) -> None:
        if self._session is not None:
            self._session.syncing = self._before
