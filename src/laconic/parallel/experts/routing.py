"""Which experts process which tokens: the choices of a router, and the capacity of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Choices:
    """What a router chose for tokens.

    - `experts`: the numbers of the chosen experts, a row for the first choices of all tokens, and so on.
    - `gates`: what the outputs of these experts are multiplied by.
    - `probabilities`: of all experts, a row for each token.
    """

    experts: Tensor
    gates: Tensor
    probabilities: Tensor

    @property
    def counts(self) -> Tensor:
        """How many tokens chose each expert: a row for the first choices, and so on."""
        top, experts = len(self.experts), self.probabilities.shape[-1]
        places = self.experts + experts * torch.arange(top, device=self.experts.device)[:, None]
        return torch.bincount(places.flatten(), minlength=top * experts).view(top, experts)


def choose(scores: Tensor, top: int) -> Choices:
    """Return the experts of the highest scores of each token.

    Probabilities are the softmax of all scores, in float32 at least. A single choice is multiplied by its probability
    (Switch); several by their probabilities over their sum, as in GShard, which is the softmax of their scores, as in
    Shazeer et al.
    """
    probabilities = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
    values, experts = probabilities.topk(top, -1)
    gates = values if top == 1 else values / values.sum(-1, keepdim=True)
    return Choices(experts.T, gates.T, probabilities)


def kept_counts(counts: Tensor, capacity_factor: float | None) -> Tensor:
    """Return how many tokens of each device, choice and expert find room, from how many ask for it.

    An expert has room for `capacity_factor` times its share of all choices, rounded up. First choices come before
    second ones, then devices in the order of their ranks, then tokens in their order: as if one device had them all.
    """
    if capacity_factor is None:
        return counts
    capacity = math.ceil(capacity_factor * int(counts.sum()) / counts.shape[-1])
    of_choice = counts.sum(0)
    before = (of_choice.cumsum(0) - of_choice) + (counts.cumsum(0) - counts)
    return torch.minimum((capacity - before).clamp(min=0), counts)


def places_by_expert(experts: Tensor, counts: Tensor, kept: Tensor) -> Tensor:
    """Return the places of a device's choices that found room, in the flattened order of `Choices.experts`, sorted by
    expert, choice and token.

    - `experts`, `counts`: the device's choices, and how many there are by choice and expert.
    - `kept`: how many of these found room.
    """
    order = experts.flatten().argsort(stable=True)
    sizes = counts.T.flatten()
    begins = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    found_room = torch.arange(len(order), device=order.device) - begins < kept.T.flatten().repeat_interleave(sizes)
    return order[found_room]
