"""Accelerate: `prepare(accelerator, strategy, …)` in the place of `accelerator.prepare(…)`.

Accelerate places the model, casts in its forward pass, and prepares the optimizer, loaders and schedulers as always; it
only does not wrap the model in DDP, since `laconic.distribute` owns the communication. Where its plugin asks for FSDP2,
Accelerate shards the model first, and what the shards send is then sent as the strategy says.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn, optim

from laconic.api.distribute import distribute
from laconic.errors import ContractError
from laconic.strategy import Strategy

_TYPES = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def prepare(
    accelerator: Accelerator, strategy: str | Strategy | None, *objects: Any, **options: Any
) -> tuple[Any, ...]:
    """Prepare a model, its optimizer, loaders and schedulers, and return them in the same order.

    `accelerator.accumulate(model)`, `backward` and `clip_grad_norm_` work as before. The optimizer that
    `laconic.checkpoint`, `resume`, `finish` and `clip_grad_norm_` take is the one inside: `optimizer.optimizer`.

    - `accelerator`: an `Accelerator` of plain data parallelism, or of FSDP2
      (`FullyShardedDataParallelPlugin(fsdp_version=2)`), without a plugin for DeepSpeed, FSDP1 or Megatron.
    - `strategy`: as for `laconic.distribute`; with FSDP2 also `zero_plus_plus` and its like.
    - `objects`: one model and one optimizer, and whatever else `accelerator.prepare` takes.
    - `options`: those of `laconic.distribute`.
    """
    sharded = getattr(accelerator, "is_fsdp2", False)  # older versions know FSDP1 alone
    if accelerator.distributed_type not in _TYPES and not sharded:
        raise ContractError(
            f"this Accelerator is one for {accelerator.distributed_type.value}, which communicates by itself: make one "
            "without its plugin, or with that of FSDP2, FullyShardedDataParallelPlugin(fsdp_version=2)"
        )
    models = [item for item in objects if isinstance(item, nn.Module)]
    optimizers = [item for item in objects if isinstance(item, optim.Optimizer)]
    if len(models) != 1 or len(optimizers) != 1:
        raise ContractError(
            f"prepare() takes one model and one optimizer, not {len(models)} and {len(optimizers)}: they are "
            "distributed together"
        )
    if sharded:
        prepared = accelerator.prepare(*objects)
        by_object = dict(zip(map(id, objects), prepared, strict=True))
        _distribute_sharded(by_object[id(models[0])], by_object[id(optimizers[0])], strategy, options)
        return tuple(prepared)
    if accelerator.device_placement:
        models[0].to(accelerator.device)
    model, optimizer = distribute(models[0], optimizers[0], strategy, **options)
    placed = accelerator.prepare_model(model, evaluation_mode=True)  # all but DDP
    placed._is_accelerate_prepared = True  # accelerate's own mark: a later prepare() leaves the model alone
    replaced = {id(models[0]): placed, id(optimizers[0]): optimizer}
    given = [replaced.get(id(item), item) for item in objects]
    placement = [False if item is optimizer else None for item in given]  # its state is where the model is
    return tuple(accelerator.prepare(*given, device_placement=placement))


def _distribute_sharded(model: nn.Module, accelerated: Any, strategy: str | Strategy | None, options: Any) -> None:
    """Distribute a model that Accelerate has sharded, and let its optimizer step the distributed one."""
    from laconic.parallel.fsdp.mesh import sharded_part  # PyTorch's FSDP2 is not loaded where nobody shards

    _, optimizer = distribute(sharded_part(model), accelerated.optimizer, strategy, **options)
    accelerated.__setstate__({**accelerated.__getstate__(), "optimizer": optimizer})  # and the step a scaler calls
