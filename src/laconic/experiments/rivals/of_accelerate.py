"""The rival of the accelerate library: its LocalSGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from laconic.errors import ContractError
from laconic.experiments.rivals.base import Rival, RivalContext
from laconic.knobs import knob

if TYPE_CHECKING:
    from torch import nn, optim


@dataclass(frozen=True)
class AccelerateLocalSGD(Rival):
    """accelerate's LocalSGD: local steps, parameters averaged every `period`."""

    name: ClassVar[str] = "accelerate:local_sgd"

    period: int = knob(8, low=1, doc="local steps between two averages")

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        import torch
        import torch.distributed as dist
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD

        if context.group.size != dist.get_world_size():
            raise ContractError(f"`{self}` averages over all processes of the job: leave process_group= out")
        threads = torch.get_num_threads()
        accelerator = Accelerator(cpu=next(model.parameters()).device.type == "cpu")
        torch.set_num_threads(threads)  # accelerate chooses its own number where the environment does not set one
        prepared: nn.Module = accelerator.prepare(model)
        local = LocalSGD(accelerator, prepared, self.period)
        local.__enter__()  # never left: the end of the user's loop cannot be seen from here
        optimizer.register_step_post_hook(lambda *_: local.step())
        return prepared, optimizer
