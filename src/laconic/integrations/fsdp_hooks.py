"""`laconic.fsdp_hooks`: coded gradients and weights for existing FSDP2 code, which keeps its optimizer and its loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from laconic.architecture.sharded import sharded_method
from laconic.errors import ContractError, StrategyError
from laconic.parallel.fsdp.mesh import (
    MeshWorker,
    is_fully_sharded,
    parameter_group,
    shard_process_group,
    sharded_modules,
    split_tiers,
    tiers_of,
)
from laconic.parallel.fsdp.methods import advise_slices, among_owners
from laconic.parallel.fsdp.session import gathered_weights
from laconic.parallel.fsdp.sockets import Levels, Sockets
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
) -> Hooks:
    """Code what a model that `fully_shard` has sharded sends: `laconic.fsdp_hooks(model, "strided_bits(4, 128)+loco")`.

    PyTorch keeps its schedule and its streams; the optimizer stays as it is. What the hooks remember is in their
    `state_dict()`, which belongs into a checkpoint, each rank's own; `remove()` undoes them. For local steps and DiLoCo
    between replicas, use `laconic.distribute`.

    - `model`: the module that `fully_shard` was called on, and on parts of before.
    - `gradients`: how gradients are scattered to the owners of shards: a compression, or a tier for each dimension of
      the mesh that the model is sharded on, inner to outer; or a method such as `zero_plus_plus`, which also says how
      weights are gathered.
    - `weights`: how weights are gathered, such as `int8(256)`; default: as they are.
    - `replicas`: how gradients are averaged over replicas, a compression; `mesh` then has the dimension `replica`.
      Without it PyTorch averages those of a model that is sharded on a mesh of two dimensions, as they are.
    - `mesh`: the mesh whose dimensions `gradients` and `replicas` name.
    - `seed`: the seed of the random draws that compressors make.
    """
    worker = connect()
    assert isinstance(worker, RealWorker | VirtualWorker)
    if not is_fully_sharded(model):
        raise ContractError(
            "fsdp_hooks() takes a model that fully_shard() was called on; write laconic.ddp_hook for DDP"
        )
    if (method := sharded_method(str(gradients))) is not None:
        gradients, weights = among_owners(method, model, worker, mesh), weights or method.weights
        advise_slices(method, model, worker)
    strategy = Strategy.parse(gradients)
    owners = worker.adopt(shard_process_group(model))
    names = [name for _, name in tiers_of(strategy)]
    if mesh is None and (names != [None] or replicas is not None):
        raise ContractError("tiers and replicas are dimensions of a mesh: give mesh=")
    groups = [owners if name is None or mesh is None else worker.adopt(mesh.get_group(name)) for name in names]
    shards, outside = split_tiers(strategy, groups, owners)
    if outside is not None:
        raise StrategyError(f"`{outside}` is outside of the shards: give it as replicas=")
    average = None if replicas is None or mesh is None else _replica_tier(worker, replicas, mesh, seed)
    return Hooks(worker, model, shards, gathered_weights(weights), seed, average)


def _replica_tier(worker: MeshWorker, text: str, mesh: DeviceMesh, seed: int) -> Tier:
    sentence = Strategy.parse(text)
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(f"hooks average replicas in every step, as a compression says, not as `{text}`")
    return Tier(sentence, worker.adopt(mesh.get_group("replica")), seed, worker)


class Hooks(Sockets):
    """Sockets that also average each shard over replicas, after it has been scattered, where `replicas` says how."""

    def __init__(
        self,
        worker: MeshWorker,
        model: nn.Module,
        gradients: Levels,
        weights: Sentence,
        seed: int,
        replicas: Tier | None,
    ) -> None:
        super().__init__(worker, model, gradients, weights, seed, averages_replicas=replicas is not None)
        self._replicas = replicas
        self._averages: dict[str, _Average] = {}
        if replicas is not None:
            for name, module in sharded_modules(model).items():
                self._average(name, module, replicas)

    def _average(self, name: str, module: Any, tier: Tier) -> None:
        """Let PyTorch call the average in the stream that it has for that."""
        before = parameter_group(module)._all_reduce_hook
        self._undo.append(lambda: module.set_all_reduce_hook(before))
        self._averages[name] = _Average(self, name, tier)
        module.set_all_reduce_hook(self._averages[name])

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers, as numbers, text and tensors."""
        if self._replicas is None:
            return super().state_dict()
        steps = {name: average.step for name, average in self._averages.items()}
        return {**super().state_dict(), "replicas": [str(self._replicas.sentence), steps, dict(self._replicas.memory)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned on the same rank of as many. Memory of other words than this run's
        is dropped, which the first rank says.

        - `state`: the dictionary to read.
        """
        super().load_state_dict(state)
        if self._replicas is None or "replicas" not in state:
            return
        words, steps, memory = state["replicas"]
        for name, average in self._averages.items():
            average.step = steps.get(name, -1)
        if not self._dropped("replicas", words, str(self._replicas.sentence)):
            self._replicas.memory = {name: dict(entries) for name, entries in memory.items()}


class _Average:
    """The average of one module's scattered gradients over replicas, in place."""

    def __init__(self, hooks: Hooks, name: str, tier: Tier) -> None:
        self._hooks, self._name, self._tier, self.step = hooks, name, tier, -1

    def __call__(self, shard: Tensor) -> None:
        self.step += 1
        spec = TensorSpec(self._hooks.last_name(self._name), tuple(shard.shape), shard.dtype)
        exchange = InFlight(self._tier.average([spec], [shard], self.step))
        complete([exchange])
        shard.copy_(exchange.result[0])
