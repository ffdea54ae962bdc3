"""Bulk synchronous parallel: everyone talks in every step."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.claims import ReplicasEqual
from laconic.registry import technique
from laconic.sync.base import Sync


@technique(
    "bsp",
    aliases=["synchronous", "ssgd"],
    paper="Valiant, CACM 1990 (the model); minibatch distributed SGD",
    claims=[ReplicasEqual()],
)
@dataclass(frozen=True)
class BSP(Sync):
    """Average the gradients of all workers in every step; replicas stay equal.

    With equal batches it is one worker with a batch as large as all of them together. Everything else is measured
    against it.
    """

    def averages_gradients(self, step: int) -> bool:
        return True
