"""`Training`: what the parts of a session see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.runtime.parameters import Parameters
from laconic.runtime.tiers import Tier
from laconic.worker import Group, Worker


class Training(Protocol):
    """The training of one distributed model on one worker, as its partitions and its communication planner use it."""

    worker: Worker
    model: nn.Module
    group: Group
    parameters: Parameters
    optimizer: Optimizer | None
    noted: dict[str, float]

    @property
    def steps(self) -> int:
        """The number of steps made."""
        ...

    def apply(self) -> object:
        """Let the user's optimizer step on this worker."""
        ...

    def buffers(self) -> list[Tensor]:
        """Return the model's buffers."""
        ...

    def logged(self, metric: str) -> float | None:
        """Return the value this worker's script last logged under this name since the session began, or None."""
        ...

    def steer(self, batch: int | None, rate: float) -> None:
        """Set the samples per worker (None: the script's own number) and the factor of the learning rate, from the next
        step on."""
        ...

    def address(self, tier: Tier, members: Sequence[int]) -> str:
        """Return the address of the actors that serve these parameters for a tier."""
        ...
