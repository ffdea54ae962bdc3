"""What sections remember, as a checkpoint keeps it: compressors' memories, rules' states, and what was under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from laconic.errors import ContractError
from laconic.runtime.in_flight import Departed, Journey
from laconic.runtime.partition import Section

Saved = Mapping[str, list[dict[str, Any]]]


def memory_of(sections: Sequence[Section]) -> dict[str, list[dict[str, Any]]]:
    """By section and tier; what is under way has arrived, and is kept as what it brought."""
    return {
        section.key: [
            {
                "memory": tier.memory,
                "sync": tier.sync_state,
                "flights": {name: flight.result for name, flight in tier.flights.items()},
            }
            for tier in section.tiers
        ]
        for section in sections
    }


def remember(sections: Sequence[Section], saved: Saved) -> None:
    """Take over what `memory_of` gave."""
    for section in sections:
        for tier, own in zip(section.tiers, saved[section.key], strict=True):
            tier.memory, tier.sync_state = own["memory"], own["sync"]
            tier.flights = {name: Departed(_brought(result)) for name, result in own["flights"].items()}


def share_out(sections: Sequence[Section], everyone: Sequence[Saved], rank: int, size: int) -> None:
    """Take over from another number of workers: error memories go round-robin, so that their sum is conserved."""
    for section in sections:
        if len(section.tiers) > 1 and any(tier.has_memory for tier in section.tiers):
            raise ContractError(
                f"`{section.key}` remembers something per tier, which another number of workers cannot use: "
                f"resume with {len(everyone)} workers"
            )
        (tier, *_) = section.tiers
        for name, memory in tier.memory.items():
            for key in memory.keys() & set(tier.compressor.conserved):
                old = (everyone[r][section.key][0]["memory"][name][key] for r in range(rank, len(everyone), size))
                memory[key] = sum(old, start=torch.zeros_like(memory[key]))


def _brought(result: Any) -> Journey:
    """A journey that has arrived already."""
    return result
    yield
