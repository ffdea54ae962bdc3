"""A `DeviceMesh` of virtual workers, so that `fully_shard` runs in them as it does in processes.

`fully_shard` communicates through the hooks that `laconic.distribute` fills; of a process group it asks only rank and
size. So a virtual worker's mesh has process groups that know these two things and the group of virtual workers they
stand for, and carry two operations for what a script does with sharded tensors between steps: it clips the norm of
gradients, or looks at a whole parameter. This is the only module that builds a mesh by hand: PyTorch has no public way
that needs no default process group. So it also makes the mesh that `fully_shard` makes by itself, of the slices that
`reshard_after_forward=8` leaves inside hosts.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_init

from laconic.errors import ContractError
from laconic.runtime import current_worker
from laconic.virtual.worker import VirtualGroup, VirtualWorker

_numbers = itertools.count()


class VirtualProcessGroup(dist.ProcessGroup):
    """What `fully_shard` sees of a group of virtual workers: its rank and size; and, for sharded tensors, an all-reduce
    and an all-gather, which count as control data, since real processes do not count them at all."""

    def __init__(self, group: VirtualGroup) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self.virtual = group
        self._name: Any = f"laconic-virtual-{next(_numbers)}"

    def rank(self) -> int:
        return self.virtual.rank

    def size(self) -> int:
        return self.virtual.size

    def getBackendName(self) -> str:
        return "laconic"

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Combine tensors in place, as PyTorch calls it for a norm of sharded tensors."""
        op = opts.reduceOp
        if not any(op == known for known in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX)):
            raise ContractError(f"sharded tensors of virtual workers are added or maximised, not combined by {op}")
        how: Literal["sum", "max"] = "max" if op == ReduceOp.MAX else "sum"
        for tensor in tensors:
            total = self.virtual.all_reduce(tensor.clone(), how, control=1.0).wait()
            tensor.copy_(total / self.size() if op == ReduceOp.AVG else total)
        return _Done(tensors)

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Gather the parts of tensors, as PyTorch calls it for a whole tensor."""
        for output, part in zip(outputs, inputs, strict=True):
            output.view(self.size(), -1).copy_(self.virtual.all_gather(part.reshape(-1), control=1.0).wait())
        return _Done(outputs)

    @property
    def group_name(self) -> Any:
        return self._name


class _Done(dist.Work):
    """An operation that is over when it is returned."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        return True

    def result(self) -> list[Tensor]:
        return self._tensors


class VirtualMesh(DeviceMesh):
    """The mesh of some virtual workers, as one of them sees it. Slices are meshes of this kind too."""

    def __init__(
        self, worker: VirtualWorker, device_type: str, ranks: torch.Tensor, names: tuple[str, ...] | None
    ) -> None:
        super().__init__(device_type, ranks, mesh_dim_names=names, _init_backend=False, _rank=worker.rank)
        self._worker, self._ranks = worker, ranks
        lines = [self._line(dim).tolist() for dim in range(ranks.ndim)]
        self._process_groups = [VirtualProcessGroup(worker.group(line)) for line in lines]
        for group in self._process_groups:  # torch knows them by name, and does not keep them
            _register_process_group(group.group_name, group)
        self._dim_group_names = [group.group_name for group in self._process_groups]

    def _line(self, dim: int) -> torch.Tensor:
        """Return the ranks along a dimension, through this worker."""
        place: list[Any] = (self._ranks == self._worker.rank).nonzero()[0].tolist()
        place[dim] = slice(None)
        return self._ranks[tuple(place)]

    def __getitem__(self, names: str | tuple[str, ...]) -> VirtualMesh:
        wanted, known = (names,) if isinstance(names, str) else tuple(names), self.mesh_dim_names or ()
        if wanted == known:
            return self
        if len(wanted) != 1 or wanted[0] not in known:
            raise ContractError(f"a mesh of virtual workers has the slices {', '.join(known)}, one at a time")
        return VirtualMesh(self._worker, self.device_type, self._line(known.index(wanted[0])), wanted)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return this worker's place along a dimension, which must be named where there are several."""
        names = self.mesh_dim_names or ()
        if mesh_dim is None and self.ndim > 1:
            raise ContractError(f"a mesh of {self.ndim} dimensions has a rank along each: name one of them")
        dim = names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
        return self._process_groups[dim].rank()

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any = None) -> VirtualMesh:
        name = mesh_dim_name or "_".join(self.mesh_dim_names or ("all",))
        return VirtualMesh(self._worker, self.device_type, self._ranks.reshape(-1), (name,))


class _MeshOfSlices(DeviceMesh):
    """What `fully_shard` calls for the mesh of slices: a mesh of virtual workers in one of them, PyTorch's own in
    a process."""

    def __new__(cls, device_type: str, ranks: torch.Tensor, **options: Any) -> Any:
        worker = current_worker.current()
        if isinstance(worker, VirtualWorker):
            return VirtualMesh(worker, device_type, ranks, None)
        return DeviceMesh(device_type, ranks, **options)


_fsdp_init.DeviceMesh = _MeshOfSlices  # type: ignore[assignment, misc]
