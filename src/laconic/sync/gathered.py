"""What a server has been brought in this round, until everybody has brought something."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.architecture.server.actor import Push
from laconic.architecture.server.store import Store


def open_round(store: Store) -> None:
    store.memory["sum"] = [torch.zeros_like(value) for value in store.values]
    store.memory["brought"] = []


def bring(store: Store, push: Push, weight: float = 1.0) -> None:
    """One worker's part of this round."""
    for total, part in zip(store.memory["sum"], push.tensors, strict=True):
        total.add_(part, alpha=weight)
    store.memory["brought"].append(push.worker)


def has_brought(store: Store, worker: int) -> bool:
    """Whether this worker waits for the others."""
    return worker in store.memory["brought"]


def complete(store: Store) -> tuple[list[Tensor], list[int]] | None:
    """When all members have brought something: the sum and whose it is, and the next round is open."""
    brought: list[int] = store.memory["brought"]
    if not brought or not all(map(brought.__contains__, store.members)):
        return None
    total: list[Tensor] = store.memory["sum"]
    open_round(store)
    return total, brought
