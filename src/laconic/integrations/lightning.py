"""Lightning: `Trainer(strategy=LaconicStrategy("local(8) / bf16+ef"))`, and any compressor inside Lightning's own DDP.

`LaconicStrategy` is Lightning's strategy for DDP (its launcher, its process group, its samplers), except that the model
is not wrapped: `laconic.distribute` owns the communication. Both packages of the framework work, `lightning` and
`pytorch_lightning`: import the one that you use before this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic.errors import ContractError
from laconic.integrations.ddp_hook import DDPHook, ddp_hook
from laconic.integrations.lightning_distributing import Callback, DDPStrategy, Distributing, beside
from laconic.runtime.checkpoint import resume
from laconic.strategy import Strategy


class LaconicStrategy(Distributing, DDPStrategy):
    """Lightning's DDP strategy with the communication of a sentence.

    A module has one optimizer. Beside each checkpoint file stands a folder `….laconic` with what every rank remembers;
    resuming from the file restores it. When training ends, all workers hold one model.

    - `strategy`: as for `laconic.distribute`.
    - `options`: those of `laconic.distribute`, as a dict.
    - `named`: those of Lightning's `DDPStrategy` that do not concern DDP itself, such as `process_group_backend`.
    """

    def __init__(
        self, strategy: str | Strategy | None = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> None:
        super().__init__(strategy, options, **named)
        foreign = [*self._ddp_kwargs, *(name for name in named if name.startswith("ddp_comm_"))]
        if foreign:
            raise ContractError(f"there is no DDP here that {', '.join(foreign)} could be for: leave it out")
        self._resumed_from: Any = None

    def configure_ddp(self) -> None:
        """Leave the model as it is."""

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Run the module's step as its forward pass, which is what hooks on the module see."""
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(self.model, self.lightning_module, "training_step", *arguments, **named)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients without sending them, for `accumulate_grad_batches`."""
        with self.model.no_sync():
            yield

    # ------------------------------------------------------------------------------------------ checkpoints

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return the state of the optimizer; what ranks remember is saved beside."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`.*` remembers something on every rank")
            return super().optimizer_state(optimizer)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Read Lightning's file; what ranks remember is restored with the optimizer."""
        self._resumed_from = checkpoint_path
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *arguments, **named)
        return loaded

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the optimizer, and what this rank remembers."""
        super().load_optimizer_state_dict(checkpoint)
        if self._resumed_from is not None:
            resume(beside(self._resumed_from), self.model, self.optimizers[0])


class DDPHookCallback(Callback):
    """Any compressor inside Lightning's own DDP: `Trainer(strategy="ddp", callbacks=[DDPHookCallback("bf16+ef")])`.

    Lightning's `ddp_comm_hook=` is ignored on CPUs; this is not, and its memory is in Lightning's checkpoints, of all
    ranks. With another number of ranks it begins anew.

    - `strategy`: a compression and an architecture, as for `laconic.ddp_hook`.
    - `seed`: the seed of the random draws that the compressor makes.
    """

    def __init__(self, strategy: str | Strategy, seed: int = 0) -> None:
        self._hook: DDPHook = ddp_hook(strategy, seed)
        self._strategy, self._seed, self._by_rank = strategy, seed, None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Register the hook with the model that DDP has just wrapped."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            raise ContractError(
                f"{type(trainer.strategy).__name__} does not wrap the model in DDP, to which this hook belongs: use "
                'Trainer(strategy="ddp", …), or LaconicStrategy without this callback'
            )
        self._hook = ddp_hook(self._strategy, self._seed)
        if self._by_rank is not None and len(self._by_rank) == trainer.world_size:
            self._hook.load_state_dict(self._by_rank[trainer.global_rank])
        model.register_comm_hook(None, self._hook)

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks remember, on rank 0; every rank calls this."""
        by_rank = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self._hook.state_dict(), by_rank)
        return {"by_rank": by_rank}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what all ranks remembered until training begins."""
        self._by_rank = state_dict["by_rank"]
