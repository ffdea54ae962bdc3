"""A server's round of contributions: the sum of what workers have pushed, until every worker has pushed."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.architecture.server.actor import Push
from laconic.architecture.server.store import Store


def open_round(store: Store) -> None:
    """Begin a round: the sum is zero, and nobody has contributed."""
    store.memory["sum"] = [torch.zeros_like(value) for value in store.values]
    store.memory["brought"] = []


def add_contribution(store: Store, push: Push, weight: float = 1.0) -> None:
    """Add a worker's push, times `weight`, to the sum of this round."""
    for total, part in zip(store.memory["sum"], push.tensors, strict=True):
        total.add_(part, alpha=weight)
    store.memory["brought"].append(push.worker)


def has_contributed(store: Store, worker: int) -> bool:
    """Return whether this worker has contributed to the round and waits for the others."""
    return worker in store.memory["brought"]


def take_if_complete(store: Store) -> tuple[list[Tensor], list[int]] | None:
    """Return the sum and its contributors and open the next round, once all members have contributed; else None."""
    contributors: list[int] = store.memory["brought"]
    if not contributors or not all(map(contributors.__contains__, store.members)):
        return None
    total: list[Tensor] = store.memory["sum"]
    open_round(store)
    return total, contributors
