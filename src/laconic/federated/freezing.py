"""Which scalars of a model are stable, as all clients find out by themselves: the mechanism of APF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MOST_FROZEN = 0.8
"""Where more than this share is frozen, the threshold is halved."""

Longer = Callable[[int, int], Tensor]
"""Returns for how many further checks each scalar rests by chance, from the number of the check and that of scalars."""


@dataclass(frozen=True, eq=False)
class Freezing:
    """The model as everybody knows it, and what is remembered of every scalar.

    - `value`: the model after the last round.
    - `checked`: what it was when each scalar was last judged.
    - `drift`, `wander`: moving averages of a scalar's changes, and of their magnitudes.
    - `length`: for how many checks a scalar rests when it is found stable again.
    - `until`: the number of the check up to which it rests.
    - `threshold`: below it the ratio of drift and wander is stable.
    - `checks`, `rounds`: how many there have been.
    """

    value: Tensor
    checked: Tensor
    drift: Tensor
    wander: Tensor
    length: Tensor
    until: Tensor
    threshold: float
    checks: int = 0
    rounds: int = 0

    @classmethod
    def begin(cls, start: Tensor, threshold: float) -> Freezing:
        """Return what is known before the first round: nothing rests."""
        nothing = torch.zeros_like(start)
        count = torch.zeros_like(start, dtype=torch.int64)
        return cls(start.clone(), start.clone(), nothing, nothing.clone(), count, count.clone(), threshold)

    @property
    def active(self) -> Tensor:
        """Which scalars are trained and sent."""
        return self.until <= self.checks

    def taken(self, values: Tensor) -> Freezing:
        """Return what is known after a round that gave the active scalars these values."""
        value = self.value.clone()
        value[self.active] = values
        return replace(self, value=value, rounds=self.rounds + 1)

    def judged(self, decay: float, longer: Longer | None = None, rested_too: bool = False) -> Freezing:
        """Return what is known after a check, which judges the active scalars.

        - `decay`: how much of the averages is kept.
        - `longer`: for how long scalars rest by chance that were active and would be so again; with `rested_too` also
          those whose rest has just ended.

        The effective perturbation |drift|/wander is 1 for a scalar that moves one way, and near 0 for one that only
        swings. One that is stable rests for one check more than the last time, any other for half as many.
        """
        active, change = self.active, self.value - self.checked
        drift = torch.where(active, decay * self.drift + (1 - decay) * change, self.drift)
        wander = torch.where(active, decay * self.wander + (1 - decay) * change.abs(), self.wander)
        stable = drift.abs() < self.threshold * wander
        length = torch.where(active, torch.where(stable, self.length + 1, self.length // 2), self.length)
        until = torch.where(active, self.checks + length + 1, self.until)
        now = self.checks + 1
        if longer is not None:
            drawn = (until <= now) & (active | rested_too)
            until = torch.where(drawn, now + longer(now, until.numel()).to(until.device), until)
        resting = float((until > now).float().mean())
        return replace(
            self,
            checked=torch.where(active, self.value, self.checked),
            drift=drift,
            wander=wander,
            length=length,
            until=until,
            threshold=self.threshold / 2 if resting > MOST_FROZEN else self.threshold,
            checks=now,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it as tensors, for a client's memory; `of` reads them."""
        numbers = torch.tensor([self.threshold, self.checks, self.rounds], dtype=torch.float64)
        names = ("value", "checked", "drift", "wander", "length", "until")
        return {"numbers": numbers, **{name: getattr(self, name) for name in names}}

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Freezing:
        """Return what `tensors` has written."""
        threshold, checks, rounds = tensors["numbers"].tolist()
        rest = {name: value for name, value in tensors.items() if name != "numbers"}
        return cls(**rest, threshold=threshold, checks=int(checks), rounds=int(rounds))
