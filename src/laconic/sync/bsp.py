"""Bulk synchronous parallel (BSP): all workers communicate in every step."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.claims import ReplicasEqual
from laconic.registry import technique
from laconic.sync.base import Sync
from laconic.values.cadence import Cadence


@technique(
    "bsp",
    aliases=["synchronous", "ssgd"],
    paper="Valiant, CACM 1990 (the model); minibatch distributed SGD",
    claims=[ReplicasEqual()],
)
@dataclass(frozen=True)
class BSP(Sync):
    """Average the gradients of all workers in every step; replicas stay equal.

    With equal batches it is equivalent to one worker with a batch as large as all of them together. It is the baseline
    for all other rules.
    """

    @property
    def cadence(self) -> Cadence:
        return Cadence()

    @property
    def guarantee(self) -> None:
        return None

    def averages_gradients(self, step: int) -> bool:
        return True
