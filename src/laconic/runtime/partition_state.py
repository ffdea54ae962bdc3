"""The state of partitions as a checkpoint keeps it: compressors' memories, rules' states, and results of
communications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.compression.optional import added_memories, conserved_of
from laconic.errors import ContractError
from laconic.runtime.in_flight import InFlight
from laconic.runtime.partition import Partition
from laconic.worker import Communication

Saved = Mapping[str, list[dict[str, Any]]]


def saved_state(partitions: Sequence[Partition]) -> dict[str, list[dict[str, Any]]]:
    """Return the state by partition and tier. Communications in flight must have completed; their results are kept."""
    return {
        partition.key: [
            {
                "memory": tier.memory,
                "sharded_with": tier.sharded_with,
                "sync": tier.sync_state,
                "flights": {name: communication.result for name, communication in tier.in_flight.items()},
            }
            for tier in partition.tiers
        ]
        for partition in partitions
    }


def restore_state(partitions: Sequence[Partition], saved: Saved) -> None:
    """Restore what `saved_state` returned."""
    for partition in partitions:
        for tier, own in zip(partition.tiers, saved[partition.key], strict=True):
            tier.memory, tier.sync_state = own["memory"], _where_it_is_kept(own["sync"], tier.sync_state)
            tier.sharded_with = own.get("sharded_with", {})  # tiers sent full copies once
            tier.whole.memory_replaced()
            tier.in_flight = {name: InFlight(_completed(result)) for name, result in own["flights"].items()}


def _where_it_is_kept(saved: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a rule has saved, in the memory where it keeps it: counts and offloaded state in the host's, parts of
    a vector in that vector. What it does not have at its beginning is returned as it is."""
    found = dict(saved)
    for name, kept in present.items():
        if name in found and found[name].shape == kept.shape and found[name].dtype == kept.dtype:
            found[name] = kept.copy_(found[name])
    return found


def redistribute_state(partitions: Sequence[Partition], everyone: Sequence[Saved], rank: int, size: int) -> None:
    """Take over the state of another number of workers: error memories are dealt out round-robin, so that their sum is
    conserved."""
    for partition in partitions:
        if len(partition.tiers) > 1 and any(tier.has_memory for tier in partition.tiers):
            raise ContractError(
                f"`{partition.key}` remembers something per tier, which another number of workers cannot use: "
                f"resume with {len(everyone)} workers"
            )
        (tier, *_) = partition.tiers
        for name, memory in tier.memory.items():
            for key in memory.keys() & set(conserved_of(tier.compressor)):
                old = [everyone[r][partition.key][0]["memory"][name][key] for r in range(rank, len(everyone), size)]
                memory[key] = added_memories(tier.compressor, key, old) if old else torch.zeros_like(memory[key])
        tier.whole.memory_replaced()


def _completed(result: Any) -> Communication[Any]:
    """Return a communication that is complete already, with this result."""
    return result
    yield
