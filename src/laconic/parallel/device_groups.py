"""The groups of workers along the dimensions of a device mesh."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from laconic.real.connect import connect
from laconic.worker import Group


def groups_of(mesh: DeviceMesh) -> dict[str, Group]:
    """Return the group of workers along each dimension of a mesh, through this worker, by name or number."""
    worker: Any = connect()
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    return {name: worker.adopt(mesh.get_group(dimension)) for dimension, name in enumerate(names)}
