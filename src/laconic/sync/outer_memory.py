"""What a rule with an outer optimizer keeps of a bucket's parameters: vectors, in whose parts each parameter has its
own entry of the rule's state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.kernels.offload import room
from laconic.sync.base import State
from laconic.sync.tensor_lists import kept


def parts_of(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a vector in the shapes of these tensors."""
    parts = vector.split([x.numel() for x in like])
    return [part.view(x.shape) for part, x in zip(parts, like, strict=True)]


def joined(tensors: Sequence[Tensor], offload: bool) -> Tensor:
    """Return a new vector of these tensors, one behind another, which is kept in the host's memory where a GPU's is to
    be offloaded."""
    first = tensors[0]
    vector = room(sum(x.numel() for x in tensors), first.dtype, first.device, offload)
    torch._foreach_copy_(parts_of(vector, tensors), [x.detach() for x in tensors])
    return vector


def keep_vector(state: State, name: str, members: Sequence[int], like: Sequence[Tensor], vector: Tensor) -> None:
    """Keep a vector in a rule's state: each parameter's part under a name of its own, as a view."""
    for i, part in zip(members, parts_of(vector, like), strict=True):
        state[f"{name}.{i}"] = part


def kept_vector(state: State, name: str, members: Sequence[int], like: Sequence[Tensor], offload: bool) -> Tensor:
    """Return the vector that `keep_vector` stored. Where something has replaced its parts by tensors of their own, or
    by tensors on another device, it is made of these anew."""
    found = kept(state, name, members)
    vector = _together(found)
    if vector is None or vector.is_cuda != (like[0].is_cuda and not offload):
        vector = room(sum(x.numel() for x in found), found[0].dtype, like[0].device, offload)
        torch._foreach_copy_(parts_of(vector, like), [x.view(p.shape) for x, p in zip(found, like, strict=True)])
        keep_vector(state, name, members, like, vector)
    return vector


def _together(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the vector of which these tensors are the parts, one behind another, or None if they lie elsewhere."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            return None
        end += part.numel() * part.element_size()
    storage = first.untyped_storage()
    if end > storage.data_ptr() + storage.nbytes():
        return None
    return first.as_strided(((end - first.data_ptr()) // first.element_size(),), (1,))
