"""`laconic.init_device_mesh`: a mesh of the workers of a run, whichever engine runs it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from laconic.errors import ContractError
from laconic.real.connect import connect
from laconic.real.worker import RealWorker
from laconic.virtual.worker import VirtualWorker

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def init_device_mesh(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> DeviceMesh:
    """Return a `DeviceMesh` of all workers, as `torch.distributed.device_mesh.init_device_mesh` does, on virtual
    workers too.

    - `device_type`: `"cpu"` or `"cuda"`; all virtual workers are on one device.
    - `mesh_shape`: the number of workers along each dimension, outer to inner.
    - `mesh_dim_names`: a name for each dimension: those of the strategy's tiers.
    """
    worker = connect()
    if math.prod(mesh_shape) != worker.size:
        raise ContractError(f"a mesh of {' x '.join(map(str, mesh_shape))} does not hold the {worker.size} workers")
    if isinstance(worker, RealWorker):
        from torch.distributed import device_mesh

        return device_mesh.init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)
    assert isinstance(worker, VirtualWorker)
    import torch

    from laconic.virtual.mesh import VirtualMesh

    return VirtualMesh(worker, device_type, torch.arange(worker.size).view(mesh_shape), mesh_dim_names)
