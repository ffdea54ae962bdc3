"""Which ranks hold the shards of a model that `fully_shard` has sharded, and which of them a strategy's tiers span."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from laconic.errors import ContractError, StrategyError
from laconic.real.worker import RealWorker
from laconic.runtime.sharded.layout import ShardLayout
from laconic.strategy import Sentence, Strategy, Tiers
from laconic.virtual.worker import VirtualWorker
from laconic.worker import Group

MeshWorker = RealWorker | VirtualWorker
"""Workers that know the groups of a device mesh."""


def is_fully_sharded(model: nn.Module) -> bool:
    """Return whether `fully_shard` was called on this module."""
    return isinstance(model, FSDPModule)


def sharded_part(module: nn.Module) -> nn.Module:
    """Return the outermost module inside that `fully_shard` was called on; it holds all parameters that are trained."""
    outermost = _outermost(module)
    if len(outermost) != 1:
        found = (
            f"fully_shard() was called on {len(outermost)} parts of this module"
            if outermost
            else ("no part of this module is sharded")
        )
        raise ContractError(f"{found}: call it on the one that holds all of its parameters, after those inside it")
    inside = {id(parameter) for parameter in outermost[0].parameters()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in inside:
            raise ContractError(
                f"{name!r} is outside of the part that fully_shard() was called on: nobody would average its gradient. "
                "Move it into that part, or freeze it"
            )
    return outermost[0]


def _outermost(module: nn.Module) -> list[nn.Module]:
    if is_fully_sharded(module):
        return [module]
    return [found for child in module.children() for found in _outermost(child)]


def sharded_modules(model: nn.Module) -> dict[str, Any]:
    """Return the modules that hold sharded parameters of their own, by name; of those that `fully_shard` was called on
    together, the first."""
    found: dict[int, tuple[str, Any]] = {}
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule) and (group := parameter_group(module)) is not None:
            found.setdefault(id(group), (name, module))
    return dict(found.values())


def parameter_group(module: Any) -> Any:
    """Return what `fully_shard` keeps of a module's own parameters, or None where it has none of its own."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.12 a module had one
        return state._fsdp_param_group
    if len(groups) > 1:
        raise ContractError(
            "a module whose parameters are sharded over several meshes has no single group to communicate in: call "
            "fully_shard on its parts, one mesh each"
        )
    return groups[0] if groups else None


def shard_process_group(model: nn.Module) -> dist.ProcessGroup:
    """Return the process group over which a model's parameters are sharded, the same for all of them."""
    groups = {id(g): g for g in (parameter_group(m).mesh_info.shard_process_group for m in _modules(model))}
    if len(groups) > 1:
        raise ContractError("modules of this model are sharded over different ranks: shard all of them on one mesh")
    found: dist.ProcessGroup = next(iter(groups.values()))
    return found


def replica_process_group(model: nn.Module) -> dist.ProcessGroup | None:
    """Return the process group of this worker's shards in the replicas of a model, or None where PyTorch knows of no
    replicas, since the mesh that it was sharded on has one dimension."""
    info = parameter_group(_modules(model)[0]).mesh_info
    return None if getattr(info, "replicate_mesh_dim", None) is None else info.replicate_process_group


def _modules(model: nn.Module) -> list[Any]:
    found = list(sharded_modules(model).values())
    if not found:
        raise ContractError("no parameter of this model is sharded: call fully_shard(model) first")
    return found


def layout_of(module: Any, size: int, only: Collection[int] | None = None) -> ShardLayout:
    """Return where the gradients of a module's own parameters lie in the flat tensor of a reduce-scatter: of all that
    are trained, or of those with the indices `only`."""
    own = parameter_group(module).fsdp_params
    trained = [p for i, p in enumerate(own) if (p.sharded_param.requires_grad if only is None else i in only)]
    return ShardLayout(tuple(tuple(p._orig_size) for p in trained), tuple(p.fsdp_placement.dim for p in trained), size)


def average_replicas_here(module: Any) -> Any:
    """Let `fully_shard` leave the average over replicas of a two-dimensional mesh to this library; return what undoes
    it, or None where the mesh has no replicas.

    PyTorch calls its hook after its own all-reduce, so that the dimension of replicas must be hidden from it.
    """
    group = parameter_group(module)
    before = group.mesh_info
    if getattr(before, "replicate_mesh_dim", None) is None:
        return None
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

        alone = FSDPMeshInfo(mesh=before.mesh, shard_mesh_dim=before.shard_mesh_dim)
    except (ImportError, TypeError) as error:
        raise ContractError(
            "this version of PyTorch averages replicas itself, and leaves no room for another way: shard the model on "
            'mesh["shard"] alone, and give distribute() the whole mesh'
        ) from error

    def put(info: Any) -> None:
        group.mesh_info = info
        for parameter in group.fsdp_params:
            parameter.mesh_info = info

    put(alone)
    return lambda: put(before)


def tiers_of(strategy: Strategy) -> list[tuple[Strategy, str | None]]:
    """Return a strategy's tiers, inner to outer; one without a name where it has none."""
    return list(strategy.levels) if isinstance(strategy, Tiers) else [(strategy, None)]


def split_tiers(
    strategy: Strategy, groups: Sequence[Group], owners: Group
) -> tuple[list[tuple[Sentence, Group]], Strategy | None]:
    """Return the tiers among which a model is sharded, with their groups, and the strategy of the replicas outside.

    `groups` are those of the strategy's tiers. The innermost tiers are those of the shards, as many as it takes.
    """
    inside: list[tuple[Sentence, Group]] = []
    size, tiers = 1, tiers_of(strategy)
    while size < owners.size and tiers:
        (sentence, name), group = tiers.pop(0), groups[len(inside)]
        if not isinstance(sentence, Sentence):
            raise StrategyError(
                f"`{sentence}`: the gradients of a sharded module arrive as one, without names and phases; write one "
                "compression for the tier of the shards, as in [strided_bits(4, 128)+loco]@shard"
            )
        if group.rank != owners.rank // size % group.size:
            raise ContractError(
                f"tier {name or 'shard'} does not follow the order of the ranks over which the model is sharded: write "
                "the mesh's last dimension as the innermost tier, and shard on the flattened mesh"
            )
        inside.append((sentence, group))
        size *= group.size
    if size != owners.size:
        raise StrategyError(
            f"the model is sharded over {owners.size} ranks, which no tiers of `{strategy}` span: name the mesh's "
            "dimensions inner to outer, as in [strided_bits(4, 128)+loco]@shard > [bf16]@replica"
        )
    return inside, Tiers(tuple((outer, name or "replica") for outer, name in tiers)) if tiers else None
