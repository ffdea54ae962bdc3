"""Overlapped synchronisation (OSP): important tensors are exchanged at once, the rest during the next iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from laconic.compression.base import Compressor
from laconic.compression.optional import has_memory
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.sync.base import State, Sync, average_buffers
from laconic.sync.contexts import OverlapContext, SteeringContext
from laconic.sync.server import bounded_staleness
from laconic.sync.tensor_lists import copies, copy_into
from laconic.values.cadence import Cadence
from laconic.worker import Communication

_PERIOD = 10  # steps between two decisions on the budget


class StagedContext(OverlapContext, SteeringContext, Protocol):
    """A second stage in flight, and the times and losses that set its budget."""


@technique(
    "osp", paper="Chen et al., ICPP 2023 (arXiv 2306.16926)", worth_trying=["osp(share=1)", "osp(share=1, delay=2)"]
)
@dataclass(frozen=True)
class OSP(Sync[StagedContext]):
    """Average and apply gradients of important tensors at once, and those of the others during the next iteration.

    Until the others arrive, a worker uses a step on its own gradients (local gradient prediction, LGP). Then that step
    is undone and the optimizer steps on the mean, so that all replicas agree again and momentum has seen means alone;
    they are one iteration late at most. Readings chosen: a tensor's importance is the sum of |w·g| over its elements,
    by the last mean gradient known (which is the same everywhere); the budget of the second stage is what fits in the
    computation by the measured rate, times the share by which the logged loss has fallen (where no loss is logged:
    zero, which is `bsp`).

    With a `delay` of several iterations, which the paper does not have, as many exchanges are in flight at a time, for
    links whose latency is longer than an iteration. All tensors are then in the second stage, the steps on a worker's
    own gradients that have no mean yet are made one after another, and a compression with memory is refused, since what
    one message left out would not be known when the next one leaves.
    """

    share: float | None = knob(
        None, low=0, high=1, doc="largest share of all bytes in the second stage; none: grows as the loss falls"
    )
    delay: int = knob(1, low=1, gentler="less", doc="iterations after which the second stage is waited for")
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    prefers: ClassVar[Mapping[str, str]] = {"architecture": "parameter_server"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay > 1 and self.share != 1:
            raise StrategyError(
                f"osp(delay={self.delay}) holds all tensors back, and share={self.share} only some of them; write "
                f"osp(share=1, delay={self.delay})"
            )

    def objects_to(self, compressor: Compressor) -> str | None:
        if self.delay > 1 and has_memory(compressor):
            return (
                f"osp(share=1, delay={self.delay}) starts an exchange before the last one is complete, and this "
                "compression needs what that one left in its memory"
            )
        return None

    @property
    def copies(self) -> int:  # type: ignore[override]
        return self.delay  # the common parameters, and the gradients whose means are in flight but the oldest

    @property
    def cadence(self) -> Cadence | None:
        return Cadence(overlaps=False, flight=self.delay) if self.share == 1 else None

    @property
    def guarantee(self) -> str:
        return bounded_staleness(self.delay)

    @property
    def reads_optimizer_state(self) -> bool:
        return True

    def init(self, context: StagedContext) -> State:
        scores = torch.full((len(context.parameters),), torch.inf, dtype=torch.float64)  # unknown: not held back
        if self.share is not None:
            scores.zero_()
        return {"scores": scores, "budget": torch.tensor(0.0, dtype=torch.float64)}

    def held_back(self, context: StagedContext, state: State) -> list[int]:
        """Return the indices of the least important tensors that together fit into the second stage's budget."""
        sizes = [p.nbytes for p in context.parameters]
        left = float(state["budget"]) if self.share is None else self.share * sum(sizes)
        chosen = []
        for i in torch.argsort(state["scores"], stable=True).tolist():
            if sizes[i] <= left and state["scores"][i] < torch.inf:
                chosen.append(i)
                left -= sizes[i]
        return sorted(chosen)

    def stepping(self, context: StagedContext, state: State) -> Communication[State]:
        computed = context.seconds - float(state["left"]) if "left" in state else 0.0
        state, gradients = dict(state), copies(context.gradients)
        yield from self._complete(context, state, context.step - self.delay)
        rest = self.held_back(context, state)
        now = [i for i in range(len(gradients)) if i not in rest]
        if now:
            began = context.seconds
            means = yield from self._means_of(context, {i: gradients[i].clone() for i in now})
            sent_bytes = sum(mean.nbytes for mean in means.values())
            state["seconds_per_byte"] = _number((context.seconds - began) / max(1, sent_bytes))
            self._step(context, state, means)
        context.note(held_bytes=sum(gradients[i].nbytes for i in rest))
        if rest:
            context.start(_stage(context.step), self._means_of(context, {i: gradients[i].clone() for i in rest}))
            self._predict(context, state, rest, gradients)
        if self.share is None and (context.step + 1) % _PERIOD == 0:
            yield from self._decide(context, state, computed)
        state["left"] = _number(context.seconds)
        return state

    def _predict(self, context: StagedContext, state: State, rest: Sequence[int], gradients: Sequence[Tensor]) -> None:
        """Step on this worker's own gradients in place of the means in flight, without a trace in the optimizer's
        state."""
        with preserving_state(context.optimizer, [context.parameters[i] for i in rest]):
            for i in rest:
                state[f"x.{i}"] = context.parameters[i].detach().clone()
            for step in range(context.step - self.delay + 1, context.step):
                if context.is_in_flight(_stage(step)):
                    _apply(context, {i: state[f"g.{step}.{i}"].clone() for i in rest})
            _apply(context, {i: gradients[i].clone() for i in rest})
        if self.delay > 1:  # the oldest one's mean comes before the next prediction
            for i in rest:
                state.pop(f"g.{context.step - self.delay + 1}.{i}", None)
                state[f"g.{context.step}.{i}"] = gradients[i]

    @staticmethod
    def _means_of(context: StagedContext, gradients: Mapping[int, Tensor]) -> Communication[dict[int, Tensor]]:
        means = yield from context.average(list(gradients.values()), only=list(gradients))
        return dict(zip(gradients, means, strict=True))

    def _complete(self, context: StagedContext, state: State, step: int) -> Communication[None]:
        """Wait for the second stage of an iteration if it is in flight, restore the common parameters, and step on the
        means."""
        means = (yield from context.wait_for(_stage(step))) if context.is_in_flight(_stage(step)) else {}
        which = sorted(int(name.removeprefix("x.")) for name in state if name.startswith("x."))
        copy_into([context.parameters[i] for i in which], [state.pop(f"x.{i}") for i in which])
        if means:
            self._step(context, state, means)

    def _step(self, context: StagedContext, state: State, means: Mapping[int, Tensor]) -> None:
        """Step the user's optimizer on the means of these tensors alone, and update their importance, unless all are
        held back whatever it is."""
        if self.share != 1:
            scores = state["scores"].clone()
            for i, mean in means.items():
                scores[i] = float((context.parameters[i].detach() * mean).abs().sum())
            state["scores"] = scores
        _apply(context, means)

    def _decide(self, context: StagedContext, state: State, computed: float) -> Communication[None]:
        """Set the same budget on all workers, from the means of their losses, computing times and transfer rates."""
        loss = context.logged("loss")
        pace = state.get("seconds_per_byte", _number(0.0))
        mine = torch.stack([_number(loss or 0.0), _number(float(loss is not None)), _number(computed), pace])
        (mean,) = yield from context.mean([mine.to(context.parameters[0].device)])
        total, known, computing, per_byte = mean.tolist()
        if known:
            state.setdefault("first_loss", _number(total / known))
            progress = min(max(1 - total / known / float(state["first_loss"]), 0.0), 1.0)
            state["budget"] = _number(progress * computing / per_byte if per_byte else 0.0)

    def leave(self, context: StagedContext, state: State) -> Communication[None]:
        for step in range(context.step - self.delay, context.step + 1):
            yield from self._complete(context, state, step)
        for parameter in context.parameters:
            parameter.grad = None
        yield from average_buffers(context)


def _stage(step: int) -> str:
    return f"second stage of {step}"


def _apply(context: StagedContext, gradients: Mapping[int, Tensor]) -> None:
    """Step the user's optimizer on these gradients of parameters alone."""
    for i, parameter in enumerate(context.parameters):
        parameter.grad = gradients[i].view_as(parameter) if i in gradients else None
    context.apply()


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@contextmanager
def preserving_state(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Restore the optimizer's state of these parameters at the end of the block to what it was before."""
    before = {p: {k: _copied(v) for k, v in optimizer.state.get(p, {}).items()} for p in parameters}
    try:
        yield
    finally:
        for parameter, memory in before.items():
            if memory:
                optimizer.state[parameter] = memory
            else:
                optimizer.state.pop(parameter, None)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
