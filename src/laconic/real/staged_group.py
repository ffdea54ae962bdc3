"""CUDA tensors over gloo, through the host's memory: so two processes that share a GPU exchange, which NCCL refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.real.group import GroupOwner, RealGroup, RealHandle
from laconic.runtime.counted_group import CountedGroup
from laconic.worker import Handle


class StagedHandle:
    """A handle of an operation on copies in the host's memory, whose result is copied back to the device."""

    def __init__(self, copies: Handle, result: Tensor) -> None:
        self._copies, self._result = copies, result

    def done(self) -> bool:
        return self._copies.done()

    def wait(self) -> Tensor:
        found: Tensor = self._copies.wait()
        return self._result.copy_(found.view(self._result.shape), non_blocking=True)


class StagedGroup(RealGroup):
    """A group whose CUDA tensors are copied to pinned memory of the host, sent from there, and copied back on arrival.

    gloo carries no CUDA tensors in messages to one other worker and in reduce-scatters. The bits are those of CPU
    tensors, since the same operations carry them. The host waits for the copies.
    """

    def stages(self, tensor: Tensor) -> bool:
        """Return whether a tensor goes through the host."""
        return tensor.is_cuda

    def _all_reduce(self, tensor: Tensor, op: str) -> Any:
        if not self.stages(tensor):
            return super()._all_reduce(tensor, op)
        return StagedHandle(super()._all_reduce(_on_host(tensor), op), tensor)

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> Any:
        if not self.stages(tensor):
            return super()._all_gather(tensor, out)
        result = tensor.new_empty(self.size, *tensor.shape) if out is None else out
        return StagedHandle(super()._all_gather(_on_host(tensor), _room(result)), result)

    def _all_to_all(
        self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None, name: str = "all_to_all"
    ) -> Any:
        if not self.stages(tensor):
            return super()._all_to_all(tensor, sends, receives, out, name)
        result = tensor.new_empty(sum(receives)) if out is None else out.view(-1)
        return StagedHandle(super()._all_to_all(_on_host(tensor), sends, receives, _room(result), name), result)

    def _reduce_scatter(self, flat: Tensor) -> Any:
        if not self.stages(flat):
            return super()._reduce_scatter(flat)
        return StagedHandle(self._summed_blocks(_on_host(flat)), flat.new_empty(flat.numel() // self.size))

    def _broadcast(self, tensor: Tensor, root: int) -> Any:
        if not self.stages(tensor):
            return super()._broadcast(tensor, root)
        return StagedHandle(super()._broadcast(_on_host(tensor), root), tensor)

    def _send(self, tensor: Tensor, to: int, tag: int) -> RealHandle:
        return super()._send(_on_host(tensor) if self.stages(tensor) else tensor, to, tag)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> Any:
        if not self.stages(tensor):
            return super()._receive(tensor, source, tag)
        return StagedHandle(super()._receive(_room(tensor), source, tag), tensor)

    def _swap(self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]) -> Sequence[Handle]:
        return CountedGroup._swap(self, sends, receives)


def group_of(worker: GroupOwner, process_group: dist.ProcessGroup) -> RealGroup:
    """Return the group of a process group: one that stages CUDA tensors where gloo would have to carry them."""
    member = dist.get_rank(process_group) >= 0
    gloo = member and "cuda:gloo" in dist.get_backend_config(process_group).split(",")
    return (StagedGroup if gloo and torch.cuda.is_available() else RealGroup)(worker, process_group)


def _room(like: Tensor) -> Tensor:
    """Return room of the host's memory for such a tensor."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in the host's memory, as soon as it is there."""
    copy = _room(tensor).copy_(tensor, non_blocking=True)
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return copy
