"""A `DeviceMesh` of virtual workers, so that `fully_shard` runs in them as it does in processes.

`fully_shard` communicates through the hooks that `laconic.distribute` fills; of a process group it asks only rank and
size. So a virtual worker's mesh has process groups that know these two things and the group of virtual workers they
stand for, and carry nothing themselves. This is the only module that builds a mesh by hand: PyTorch has no public way
that needs no default process group.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group
from torch.distributed.device_mesh import DeviceMesh

from laconic.errors import ContractError
from laconic.virtual.worker import VirtualGroup, VirtualWorker

_numbers = itertools.count()


class VirtualProcessGroup(dist.ProcessGroup):
    """What `fully_shard` sees of a group of virtual workers: its rank and size."""

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

    @property
    def group_name(self) -> Any:
        return self._name


class VirtualMesh(DeviceMesh):
    """The mesh of some virtual workers, as one of them sees it. Slices are meshes of this kind too."""

    def __init__(self, worker: VirtualWorker, ranks: torch.Tensor, names: tuple[str, ...] | None) -> None:
        super().__init__("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=worker.rank)
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
        return VirtualMesh(self._worker, self._line(known.index(wanted[0])), wanted)

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any = None) -> VirtualMesh:
        name = mesh_dim_name or "_".join(self.mesh_dim_names or ("all",))
        return VirtualMesh(self._worker, self._ranks.reshape(-1), (name,))
