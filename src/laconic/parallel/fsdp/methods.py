"""Methods of sharded training, asked for by name, on the model and the mesh at hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import nn

from laconic.architecture.sharded import ShardedMethod
from laconic.errors import StrategyError
from laconic.parallel.fsdp.mesh import parameter_group, shard_process_group, sharded_modules
from laconic.worker import Worker

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def among_owners(method: ShardedMethod, model: nn.Module, worker: Worker, mesh: DeviceMesh | None) -> str:
    """Return how a method scatters this model's gradients among the owners of its shards: over the dimensions of a mesh
    that is sharded as a whole, over the inner one where the outer one is of replicas, or inside hosts and across."""
    owners = shard_process_group(model).size()
    if mesh is None or mesh.ndim == 1:
        one_host = worker.host_size >= owners or mesh is not None
        return method.gradients() if one_host else method.gradients("node", "host")
    if mesh.ndim > 2:
        raise StrategyError(
            f"a method's name says what two dimensions of a mesh do, and this one has {mesh.ndim}: write a tier for "
            f"each, inner to outer, such as [{method.inside}]@inside > [{method.across}]@across > [bsp]@replica"
        )
    outer, inner = mesh.mesh_dim_names or ("across", "inside")
    return method.gradients(inner, outer) if owners == mesh.size() else f"[{method.alone}]@{inner}"


def with_replicas(method: ShardedMethod, model: nn.Module, worker: Worker, mesh: DeviceMesh | None) -> str:
    """Return a method's strategy for this model: among owners, and in every step among the replicas of a mesh."""
    shards = among_owners(method, model, worker, mesh)
    if mesh is None or mesh.ndim == 1 or shard_process_group(model).size() == mesh.size():
        return shards
    return f"{shards} > [bsp]@{(mesh.mesh_dim_names or ('across',))[0]}"


def advise_slices(method: ShardedMethod, model: nn.Module, worker: Worker) -> None:
    """Say, where a method has slices of weights for each host (hpZ), that backward gathers from other hosts because
    `fully_shard` was not told of them."""
    if type(method.reshard_after_forward) is not int or worker.rank:
        return
    groups = [parameter_group(module) for module in sharded_modules(model).values()]
    freed = [group for group in groups if group.post_forward_mesh_info is group.mesh_info]
    host = worker.host_size
    if freed and host < shard_process_group(model).size():
        print(
            f"laconic: backward gathers weights from other hosts too. hpZ, which this method has, is PyTorch's: "
            f"fully_shard(part, reshard_after_forward={host}) with the number of workers of a host",
            file=sys.stderr,
        )
