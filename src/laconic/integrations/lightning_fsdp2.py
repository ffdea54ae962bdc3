"""Lightning and FSDP2: `Trainer(strategy=ShardedLaconicStrategy("zero_plus_plus", data_parallel_size=8, …))`.

Lightning's strategy for models that `configure_model` shards itself, with coded gradients and weights. Nothing else of
such a script changes: its mesh, its `fully_shard`, its checkpoints.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from laconic.errors import ContractError
from laconic.integrations.lightning_distributing import Distributing, ModelParallelStrategy, beside
from laconic.parallel.fsdp.mesh import sharded_part
from laconic.parallel.fsdp.session import ShardedSession
from laconic.runtime.checkpoint import resume
from laconic.runtime.optimizer import DistributedOptimizer


class ShardedLaconicStrategy(Distributing, ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy`, where what `fully_shard` sends is sent as a sentence says.

    `configure_model` calls `fully_shard` on one part of the module, which holds all trained parameters. Lightning saves
    the shards; beside each checkpoint stands a folder `….laconic` with what every rank remembers, of which resuming
    makes use. A module has one optimizer, and is not split over tensors as well.

    - `strategy`: as for `laconic.distribute`, such as `zero_plus_plus` or `strided_bits(4, 128)+loco`.
    - `options`: those of `laconic.distribute`, as a dict: `{"weights": "int8(256)"}`.
    - `named`: those of Lightning's `ModelParallelStrategy`: `data_parallel_size` (the number of workers) and others.
    """

    @property
    def distributed_module(self) -> nn.Module:
        """The part of the module that `fully_shard` was called on."""
        return sharded_part(self.model)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the module's optimizer, and distribute both."""
        if (split := self.device_mesh["tensor_parallel"].size()) > 1:
            raise ContractError(
                f"this module is split over tensors as well ({split} ways), which is not supported: write "
                f"tensor_parallel_size=1, data_parallel_size={self.world_size}"
            )
        super().setup_optimizers(trainer)
        session = self.optimizers[0].session
        assert isinstance(session, ShardedSession)
        session.saved_elsewhere = True

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return the state of the optimizer's shards; what ranks remember is saved beside."""
        return super().optimizer_state(_base(getattr(optimizer, "_optimizer", optimizer)))

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Read Lightning's checkpoint and, where training goes on from it, what this rank remembers."""
        distributed = self.optimizers
        self.optimizers = [_base(optimizer) for optimizer in distributed]  # PyTorch steps one to learn of its state
        try:
            loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *arguments, **named)
        finally:
            self.optimizers = distributed
        if distributed:
            resume(beside(checkpoint_path), self.distributed_module, distributed[0])
        return loaded


def _base(optimizer: Any) -> Any:
    return optimizer.base if isinstance(optimizer, DistributedOptimizer) else optimizer
