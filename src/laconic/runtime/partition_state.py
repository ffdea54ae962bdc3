"""What sections remember, as a checkpoint keeps it: compressors' memories, rules' states, and what was under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from laconic.errors import ContractError
from laconic.runtime.in_flight import Communication, InFlight
from laconic.runtime.partition import Partition

Saved = Mapping[str, list[dict[str, Any]]]


def saved_state(partitions: Sequence[Partition]) -> dict[str, list[dict[str, Any]]]:
    """By section and tier; what is under way has arrived, and is kept as what it brought."""
    return {
        partition.key: [
            {
                "memory": tier.memory,
                "sync": tier.sync_state,
                "flights": {name: flight.result for name, flight in tier.in_flight.items()},
            }
            for tier in partition.tiers
        ]
        for partition in partitions
    }


def restore_state(partitions: Sequence[Partition], saved: Saved) -> None:
    """Take over what `saved_state` gave."""
    for partition in partitions:
        for tier, own in zip(partition.tiers, saved[partition.key], strict=True):
            tier.memory, tier.sync_state = own["memory"], own["sync"]
            tier.in_flight = {name: InFlight(_brought(result)) for name, result in own["flights"].items()}


def share_out(partitions: Sequence[Partition], everyone: Sequence[Saved], rank: int, size: int) -> None:
    """Take over from another number of workers: error memories go round-robin, so that their sum is conserved."""
    for partition in partitions:
        if len(partition.tiers) > 1 and any(tier.has_memory for tier in partition.tiers):
            raise ContractError(
                f"`{partition.key}` remembers something per tier, which another number of workers cannot use: "
                f"resume with {len(everyone)} workers"
            )
        (tier, *_) = partition.tiers
        for name, memory in tier.memory.items():
            for key in memory.keys() & set(tier.compressor.conserved):
                old = (everyone[r][partition.key][0]["memory"][name][key] for r in range(rank, len(everyone), size))
                memory[key] = sum(old, start=torch.zeros_like(memory[key]))


def _brought(result: Any) -> Communication:
    """A journey that has arrived already."""
    return result
    yield
