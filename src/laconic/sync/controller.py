"""The one hook of adaptive rules: what is observed in a round, and what is decided from it.

A rule derived from `Controlled` writes `decide(observed, state) -> Adjustment` and carries it out in the family it
belongs to: local rules read the period, the engine sees to the batch and the learning rate. All members of the group
must decide alike, so what they decide by is agreed first: `consult` sends one small control message in which everybody
tells its own numbers. Rules around a server, which has everybody's numbers anyway, may build `Observed` themselves and
share `decide` alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from laconic.errors import ContractError
from laconic.sync.base import State, Sync, SyncContext


@dataclass(frozen=True)
class Observed:
    """A round, the same to every member of the group. Times are of the time since the rule was last consulted."""

    step: int
    round: int = 0
    workers: int = 1
    seconds: float = 0.0
    """Since the rule began, by the slowest worker's clock."""
    loss: float | None = None
    """Latest of each worker that has logged one, in the mean."""
    first_loss: float | None = None
    rate: float = 0.0
    """The script's learning rate, as its scheduler has set it."""
    first_rate: float = 0.0
    gradient_norm: float | None = None
    """Of each worker's gradient as it stepped, in the mean; where the rule watches it."""
    compute_seconds: tuple[float, ...] = ()
    """Worker by worker, all steps since the last round together."""
    exchange_seconds: tuple[float, ...] = ()
    """Spent waiting for others and the network."""

    def losses(self, rule: str) -> tuple[float, float]:
        """The loss and the first one, for a rule that cannot decide without."""
        if self.loss is None or self.first_loss is None:
            raise ContractError(
                f"{rule} decides by the training loss, and after {self.step} steps no worker has logged a finite one: "
                "call laconic.log(loss=loss) in the training loop, or choose a rule that needs no loss, such as local"
            )
        return self.loss, self.first_loss


@dataclass(frozen=True)
class Adjustment:
    """What holds until the next one."""

    period: int = 1
    """Local steps between averagings, for rules that have them."""
    batch: int | None = None
    """Samples per worker and step, which the script asks for with `laconic.batch_size`; None: the script's own."""
    rate: float = 1.0
    """Factor on the learning rate that the script's scheduler sets."""


class Controlled(Sync):
    """A rule that decides anew from time to time."""

    watches: ClassVar[tuple[str, ...]] = ()
    """What `decide` looks at beside the step: "loss", "seconds", "gradient_norm". Nothing: nothing is sent, and the
    decision is a function of the step, the same on every worker by itself."""

    @abstractmethod
    def decide(self, observed: Observed, state: State) -> Adjustment:
        """The next round's decision; a pure function of both, except that the rule may note in `state` what it must
        remember (tensors, the same on every worker)."""

    def begin(self, context: SyncContext) -> State:
        """What `consult` remembers; part of a rule's `init`. The first decision holds from the first step on."""
        clock = torch.tensor([context.seconds, context.waited_seconds, 0.0], dtype=torch.float64)
        state = {"round": torch.tensor(0), "clock": clock}
        self._carry_out(context, self.decide(Observed(context.step, workers=context.group.size), state))
        return state

    def notice(self, context: SyncContext, state: State) -> None:
        """Once in every step: the first loss is that of the first step which logs one."""
        if "first_loss" not in state and (loss := context.logged("loss")) is not None:
            state["first_loss"] = torch.tensor(loss, dtype=torch.float64)
        state.setdefault("first_rate", torch.tensor(context.rate, dtype=torch.float64))

    def consult(self, context: SyncContext, state: State) -> Generator[Any, Any, Adjustment]:
        """Agree on what was observed, decide, and hand batch and rate to the engine."""
        self.notice(context, state)
        observed = yield from self._observe(context, state)
        decision = self.decide(observed, state)
        self._carry_out(context, decision)
        return decision

    def _carry_out(self, context: SyncContext, decision: Adjustment) -> None:
        if self.steers:
            context.steer(decision.batch, decision.rate)

    def leave(self, context: SyncContext, state: State) -> Generator[Any, Any, None]:
        self._carry_out(context, Adjustment())
        yield from super().leave(context, state)

    def settle(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        yield from super().leave(context, state)  # the decision holds on
        return state

    def _observe(self, context: SyncContext, state: State) -> Generator[Any, Any, Observed]:
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
            told = torch.tensor(mine, dtype=torch.float64, device=context.parameters[0].device)
            (gathered,) = yield [context.group.all_gather(told, control=1.0)]
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


def _norm(context: SyncContext) -> float:
    return float(torch.stack([g.norm() for g in context.gradients]).norm())


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
