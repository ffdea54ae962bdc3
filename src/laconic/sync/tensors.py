"""Lists of one tensor per parameter: copied, put in place, and kept in a rule's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from laconic.sync.base import State


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """As they are now, whatever happens to them later."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def copy_into(parameters: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Put these in the parameters' place."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def keep(name: str, tensors: Sequence[Tensor]) -> State:
    """One tensor per parameter, as it is saved."""
    return {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}


def kept(state: State, name: str, which: Sequence[int]) -> list[Tensor]:
    """What a rule remembers under a name of these parameters."""
    return [state[f"{name}.{i}"] for i in which]
