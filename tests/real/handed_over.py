"""What a process hands to its backend, counted below this library: in the operations that PyTorch dispatches."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

Operation = Literal["gather", "scatter"]


class Way(NamedTuple):
    """What was sent, whether in a backward pass, and to which rank."""

    operation: Operation
    backward: bool
    to: int


class HandedOver(TorchDispatchMode):
    """Counts, inside a `with` block, the payload bytes of all-gathers and of reduce-scatters, by way.

    A reduce-scatter that is made of an all-to-all is counted as what it is there for. Bytes are those that the
    operation has for each rank, whatever algorithm a backend takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[Way] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(func._schema.name.removeprefix("c10d::"), args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        group = dist.ProcessGroup.unbox(args[2])
        ranks = dist.get_process_group_ranks(group)
        operation: Operation = "gather" if "allgather" in name else "scatter"
        given = args[1][0] if name == "allgather_" else args[1]
        if operation == "gather":
            each = [given.nbytes] * len(ranks)
        elif name == "alltoall_base_":
            each = [rows * given.element_size() for rows in args[4]]
        else:
            assert name == "_reduce_scatter_base_", name
            each = [given.nbytes // len(ranks)] * len(ranks)
        backward = torch._C._current_graph_task_id() != -1
        for to, nbytes in zip(ranks, each, strict=True):
            if to != dist.get_rank():
                self.bytes[Way(operation, backward, to)] += nbytes

    def total(self, operation: Operation | None = None, backward: bool | None = None, to: Any = None) -> int:
        """The bytes of an operation, in forward or backward, to some ranks; of all where one is not given."""
        return sum(
            nbytes
            for way, nbytes in self.bytes.items()
            if operation in (None, way.operation) and backward in (None, way.backward) and (to is None or way.to in to)
        )
