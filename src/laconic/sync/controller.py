"""The base of adaptive rules: what is observed in a round, and what is decided from it.

A rule derived from `Controlled` defines `decide(observed, state) -> Adjustment`. Local rules apply the period of the
result, and the runtime applies the batch and the learning rate. All members of the group must decide alike, so they
first agree on what they observed: `consult` gathers every worker's numbers in one small control message. Rules around a
server, which has all numbers anyway, may build `Observed` themselves and use `decide` alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from laconic.errors import ContractError
from laconic.sync.base import State, Sync
from laconic.sync.contexts import SteeringContext
from laconic.worker import Communication


@dataclass(frozen=True)
class Observed:
    """What was observed in a round, the same on every member; times are since the rule was last consulted."""

    step: int
    round: int = 0
    workers: int = 1
    seconds: float = 0.0
    """The seconds since the rule began, by the slowest worker's clock."""
    loss: float | None = None
    """The mean of the latest losses, over the workers that have logged one."""
    first_loss: float | None = None
    rate: float = 0.0
    """The learning rate as the script's scheduler has set it."""
    first_rate: float = 0.0
    gradient_norm: float | None = None
    """The mean over workers of the norm of the gradient at the step, where the rule watches it."""
    compute_seconds: tuple[float, ...] = ()
    """The seconds each worker has computed in all steps since the last round."""
    exchange_seconds: tuple[float, ...] = ()
    """The seconds each worker has waited for others and for the network since the last round."""

    def losses(self, rule: str) -> tuple[float, float]:
        """Return the loss and the first loss, or refuse by the rule's name where no loss was logged."""
        if self.loss is None or self.first_loss is None:
            raise ContractError(
                f"{rule} decides by the training loss, and after {self.step} steps no worker has logged a finite one: "
                "call laconic.log(loss=loss) in the training loop, or choose a rule that needs no loss, such as local"
            )
        return self.loss, self.first_loss


@dataclass(frozen=True)
class Adjustment:
    """A rule's decision, which holds until the next one."""

    period: int = 1
    """Local steps between averagings, for rules that have them."""
    batch: int | None = None
    """Samples per worker and step, which the script gets from `laconic.batch_size`; None: the script's own number."""
    rate: float = 1.0
    """The factor on the learning rate that the script's scheduler sets."""


class Controlled(Sync[SteeringContext]):
    """A rule that adjusts its period, batch or learning rate from time to time."""

    watches: ClassVar[tuple[str, ...]] = ()
    """What `decide` uses besides the step: "loss", "seconds", "gradient_norm". If it is empty, nothing is sent, and the
    decision is a function of the step, which every worker computes by itself."""

    @abstractmethod
    def decide(self, observed: Observed, state: State) -> Adjustment:
        """Return the next round's decision: a pure function of both arguments, except that the rule may keep in `state`
        what it must remember (tensors, the same on every worker)."""

    def begin(self, context: SteeringContext) -> State:
        """Return the state of `consult`, for a rule's `init`, and apply the first decision from the first step."""
        clock = torch.tensor([context.seconds, context.waited_seconds, 0.0], dtype=torch.float64)
        state = {"round": torch.tensor(0), "clock": clock}
        self._apply(context, self.decide(Observed(context.step, workers=context.group.size), state))
        return state

    def notice(self, context: SteeringContext, state: State) -> None:
        """Keep the first loss that is logged and the first learning rate; to be called in every step."""
        if "first_loss" not in state and (loss := context.logged("loss")) is not None:
            state["first_loss"] = torch.tensor(loss, dtype=torch.float64)
        state.setdefault("first_rate", torch.tensor(context.rate, dtype=torch.float64))

    def consult(self, context: SteeringContext, state: State) -> Communication[Adjustment]:
        """Agree on what was observed, decide, apply the batch and the learning rate, and return the decision."""
        self.notice(context, state)
        observed = yield from self._observe(context, state)
        decision = self.decide(observed, state)
        self._apply(context, decision)
        return decision

    def _apply(self, context: SteeringContext, decision: Adjustment) -> None:
        if self.steers:
            context.steer(decision.batch, decision.rate)

    def leave(self, context: SteeringContext, state: State) -> Communication[None]:
        self._apply(context, Adjustment())
        yield from super().leave(context, state)

    def settle(self, context: SteeringContext, state: State) -> Communication[State]:
        yield from super().leave(context, state)  # the decision stays in force
        return state

    def _observe(self, context: SteeringContext, state: State) -> Communication[Observed]:
        now, waited = context.seconds, context.waited_seconds
        last, waited_before, elapsed = state["clock"].tolist()
        passed, exchanged = max(0.0, now - last), max(0.0, waited - waited_before)  # a resumed run has another clock
        mine = [
            elapsed + passed,
            passed - exchanged,
            exchanged,
            _or_nan(context.logged("loss")),
            float(state.get("first_loss", math.nan)),
            _norm(context) if "gradient_norm" in self.watches else math.nan,
        ]
        rows = [mine]
        if self.watches:
            numbers = torch.tensor(mine, dtype=torch.float64, device=context.parameters[0].device)
            (gathered,) = yield [context.group.all_gather(numbers, control=1.0)]
            rows = gathered.tolist()
        clocks, computing, exchanging, losses, firsts, norms = zip(*rows, strict=True)
        state["round"] = state["round"] + 1
        state["clock"] = torch.tensor([now, waited, max(clocks)], dtype=torch.float64)
        return Observed(
            step=context.step + 1,
            round=int(state["round"]),
            workers=context.group.size,
            seconds=max(clocks),
            loss=_mean(losses),
            first_loss=_mean(firsts),
            rate=context.rate,
            first_rate=float(state["first_rate"]),
            gradient_norm=_mean(norms),
            compute_seconds=tuple(computing),
            exchange_seconds=tuple(exchanging),
        )


def _norm(context: SteeringContext) -> float:
    return float(torch.stack([g.norm() for g in context.gradients]).norm())


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
