"""`laconic.fsdp_hooks`: coded gradients and weights for existing FSDP2 code, which keeps its optimizer and its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from laconic.errors import ContractError, StrategyError
from laconic.parallel.fsdp.mesh import (
    MeshWorker,
    is_fully_sharded,
    shard_process_group,
    sharded_modules,
    split_tiers,
    tiers_of,
)
from laconic.parallel.fsdp.session import gathered_weights
from laconic.parallel.fsdp.sockets import Sockets
from laconic.real.connect import connect
from laconic.real.worker import RealWorker
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.worker import VirtualWorker

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def fsdp_hooks(
    model: nn.Module,
    gradients: str | Strategy = "none",
    weights: str | None = None,
    replicas: str | None = None,
    mesh: DeviceMesh | None = None,
    seed: int = 0,
) -> Sockets:
    """Code what a model that `fully_shard` has sharded sends: `laconic.fsdp_hooks(model, "strided_bits(4, 128)+loco")`.

    PyTorch keeps its schedule and its streams; the optimizer stays as it is. What the hooks remember is in their
    `state_dict()`, which belongs into a checkpoint, each rank's own; `remove()` undoes them. For local steps and DiLoCo
    between replicas, use `laconic.distribute`.

    - `model`: the module that `fully_shard` was called on, and on parts of before.
    - `gradients`: how gradients are scattered to the owners of shards: a compression, or a tier for each dimension of
      the mesh that the model is sharded on, inner to outer.
    - `weights`: how weights are gathered, such as `int8(256)`; default: as they are.
    - `replicas`: how gradients are averaged over replicas, a compression; `mesh` then has the dimension `replica`.
    - `mesh`: the mesh whose dimensions `gradients` and `replicas` name.
    - `seed`: the seed of the random draws that compressors make.
    """
    worker = connect()
    assert isinstance(worker, RealWorker | VirtualWorker)
    if not is_fully_sharded(model):
        raise ContractError(
            "fsdp_hooks() takes a model that fully_shard() was called on; write laconic.ddp_hook for DDP"
        )
    strategy = Strategy.parse(gradients)
    owners = worker.adopt(shard_process_group(model))
    names = [name for _, name in tiers_of(strategy)]
    if mesh is None and (names != [None] or replicas is not None):
        raise ContractError("tiers and replicas are dimensions of a mesh: give mesh=")
    groups = [owners if name is None or mesh is None else worker.adopt(mesh.get_group(name)) for name in names]
    shards, outside = split_tiers(strategy, groups, owners)
    if outside is not None:
        raise StrategyError(f"`{outside}` is outside of the shards: give it as replicas=")
    sockets = Sockets(worker, model, shards, gathered_weights(weights), seed)
    if replicas is not None and mesh is not None:
        _average_replicas(worker, model, replicas, mesh, seed)
    return sockets


def _average_replicas(worker: MeshWorker, model: nn.Module, text: str, mesh: DeviceMesh, seed: int) -> None:
    """Average each shard over the replicas after it has been scattered, in the stream that PyTorch has for that."""
    sentence = Strategy.parse(text)
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(f"hooks average replicas in every step, as a compression says, not as `{text}`")
    tier = Tier(sentence, worker.adopt(mesh.get_group("replica")), seed, worker)
    for name, module in sharded_modules(model).items():
        module.set_all_reduce_hook(_Average(tier, name))


class _Average:
    """The average of one module's scattered gradients over replicas, in place."""

    def __init__(self, tier: Tier, name: str) -> None:
        self._tier, self._name, self._step = tier, name, -1

    def __call__(self, shard: Tensor) -> None:
        self._step += 1
        spec = TensorSpec(f"{self._name}[{shard.numel()}]", tuple(shard.shape), shard.dtype)
        exchange = InFlight(self._tier.average([spec], [shard], self._step))
        complete([exchange])
        shard.copy_(exchange.result[0])
