"""Helpers for lists of one tensor per parameter: to copy them, to assign them, and to keep them in a rule's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from laconic.sync.base import State


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return detached copies of the tensors, which later changes do not affect."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def copy_into(parameters: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy the values into the parameters, in place."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def keep(name: str, tensors: Sequence[Tensor]) -> State:
    """Return the tensors, one per parameter, as entries of a rule's state called `name.index`."""
    return {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}


def kept(state: State, name: str, which: Sequence[int]) -> list[Tensor]:
    """Return what `keep` stored in a rule's state under a name, for the parameters with these indices."""
    return [state[f"{name}.{i}"] for i in which]
