"""The place at which `distribute` hands a model over to a rival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn, optim

from laconic.errors import ContractError
from laconic.experiments.rivals.base import Rival, RivalContext
from laconic.real.group import RealGroup
from laconic.real.worker import RealWorker
from laconic.runtime.agreement import agree, describe
from laconic.runtime.handed_over import mark_as_rivals
from laconic.worker import Worker

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def hand_over(
    rival: Rival,
    worker: Worker,
    model: nn.Module,
    optimizer: optim.Optimizer,
    mesh: DeviceMesh | None,
    process_group: ProcessGroup | None,
    options: dict[str, Any],
) -> tuple[nn.Module, optim.Optimizer]:
    """Return the model and the optimizer as the rival wants them, once all ranks agree on the rival and its options."""
    rival.check(virtual=not isinstance(worker, RealWorker))
    assert isinstance(worker, RealWorker)
    if mesh is not None:
        raise ContractError(f"`{rival}` knows nothing of tiers: give process_group= instead of mesh=, or neither")
    if options["nonfinite"] == "raise":
        raise ContractError(f"`{rival}` does not look for NaN or infinite gradients: leave nonfinite= out")
    group = worker.world if process_group is None else worker.adopt(process_group)
    agree(describe(model, optimizer, str(rival), options), group, next(model.parameters()).device)
    assert isinstance(group, RealGroup)  # separate workers, without a group, have been refused by `agree`
    model, optimizer = rival.take_over(model, optimizer, RivalContext(group, options["seed"]))
    mark_as_rivals(optimizer, rival)
    return model, optimizer
