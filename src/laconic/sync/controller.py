"""The one hook of adaptive rules: what is observed in a round, and what is decided from it.

A rule derived from `Controlled` writes `decide(observed, state) -> Decision` and carries the decision out in the family
it belongs to: local rules read the period, the engine sees to the batch and the learning rate. All members of the group
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
from laconic.sync.base import Section, State, Sync


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
class Decision:
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
    def decide(self, observed: Observed, state: State) -> Decision:
        """The next round's decision; a pure function of both, except that the rule may note in `state` what it must
        remember (tensors, the same on every worker)."""

    def begin(self, section: Section) -> State:
        """What `consult` remembers; part of a rule's `init`. The first decision holds from the first step on."""
        clock = torch.tensor([section.seconds, section.waited_seconds, 0.0], dtype=torch.float64)
        state = {"round": torch.tensor(0), "clock": clock}
        self._carry_out(section, self.decide(Observed(section.step, workers=section.group.size), state))
        return state

    def notice(self, section: Section, state: State) -> None:
        """Once in every step: the first loss is that of the first step which logs one."""
        if "first_loss" not in state and (loss := section.logged("loss")) is not None:
            state["first_loss"] = torch.tensor(loss, dtype=torch.float64)
        state.setdefault("first_rate", torch.tensor(section.rate, dtype=torch.float64))

    def consult(self, section: Section, state: State) -> Generator[Any, Any, Decision]:
        """Agree on what was observed, decide, and hand batch and rate to the engine."""
        self.notice(section, state)
        observed = yield from self._observe(section, state)
        decision = self.decide(observed, state)
        self._carry_out(section, decision)
        return decision

    def _carry_out(self, section: Section, decision: Decision) -> None:
        if self.steers:
            section.steer(decision.batch, decision.rate)

    def leave(self, section: Section, state: State) -> Generator[Any, Any, None]:
        self._carry_out(section, Decision())
        yield from super().leave(section, state)

    def settle(self, section: Section, state: State) -> Generator[Any, Any, State]:
        yield from super().leave(section, state)  # the decision holds on
        return state

    def _observe(self, section: Section, state: State) -> Generator[Any, Any, Observed]:
        now, waited = section.seconds, section.waited_seconds
        last, waited_before, elapsed = state["clock"].tolist()
        passed, exchanged = max(0.0, now - last), max(0.0, waited - waited_before)  # a resumed run has another clock
        mine = [
            elapsed + passed,
            passed - exchanged,
            exchanged,
            _or_nan(section.logged("loss")),
            float(state.get("first_loss", math.nan)),
            _norm(section) if "gradient_norm" in self.watches else math.nan,
        ]
        rows = [mine]
        if self.watches:
            told = torch.tensor(mine, dtype=torch.float64, device=section.parameters[0].device)
            (gathered,) = yield [section.group.all_gather(told, control=1.0)]
            rows = gathered.tolist()
        clocks, computing, exchanging, losses, firsts, norms = zip(*rows, strict=True)
        state["round"] = state["round"] + 1
        state["clock"] = torch.tensor([now, waited, max(clocks)], dtype=torch.float64)
        return Observed(
            step=section.step + 1,
            round=int(state["round"]),
            workers=section.group.size,
            seconds=max(clocks),
            loss=_mean(losses),
            first_loss=_mean(firsts),
            rate=section.rate,
            first_rate=float(state["first_rate"]),
            gradient_norm=_mean(norms),
            compute_seconds=tuple(computing),
            exchange_seconds=tuple(exchanging),
        )


def _norm(section: Section) -> float:
    return float(torch.stack([g.norm() for g in section.gradients]).norm())


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
