"""Lightning: `Trainer(strategy=LaconicStrategy("local(8) / bf16+ef"))`, and any compressor inside Lightning's own DDP.

`LaconicStrategy` is Lightning's strategy for DDP (its launcher, its process group, its samplers), except that the model
is not wrapped: `laconic.distribute` owns the communication. Both packages of the framework work, `lightning` and
`pytorch_lightning`: import the one that you use before this module.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic.api.distribute import distribute, undistribute
from laconic.errors import ContractError
from laconic.integrations.ddp_hook import DDPHook, ddp_hook
from laconic.runtime.checkpoint import checkpoint as save
from laconic.runtime.checkpoint import resume
from laconic.runtime.finish import finish
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.strategy import Strategy

if find_spec("lightning") is None or ("pytorch_lightning" in sys.modules and "lightning" not in sys.modules):
    from pytorch_lightning import Callback
    from pytorch_lightning.strategies import DDPStrategy
else:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy


class LaconicStrategy(DDPStrategy):
    """Lightning's DDP strategy with the communication of a sentence.

    A module has one optimizer. Beside each checkpoint file stands a folder `….laconic` with what every rank remembers;
    resuming from the file restores it. When training ends, all workers hold one model.

    - `strategy`: as for `laconic.distribute`.
    - `options`: those of `laconic.distribute`, as a dict.
    - `named`: those of Lightning's `DDPStrategy` that do not concern DDP itself, such as `process_group_backend`.
    """

    model: Any  # Lightning's properties
    optimizers: Any

    def __init__(
        self, strategy: str | Strategy | None = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> None:
        super().__init__(**named)
        foreign = [*self._ddp_kwargs, *(name for name in named if name.startswith("ddp_comm_"))]
        if foreign:
            raise ContractError(f"there is no DDP here that {', '.join(foreign)} could be for: leave it out")
        self._sentence, self._options = strategy, dict(options or {})
        self._resumed_from: Any = None
        self._failed = False

    def configure_ddp(self) -> None:
        """Leave the model as it is."""

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the module's optimizer, and distribute both."""
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise ContractError(
                f"this module has {len(self.optimizers)} optimizers, and a strategy distributes a module with one: "
                "give the parameters to one optimizer, in several groups"
            )
        self.model, optimizer = distribute(self.model, self.optimizers[0], self._sentence, **self._options)
        self.optimizers = [optimizer]

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Run the module's step as its forward pass, which is what hooks on the module see."""
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(self.model, self.lightning_module, "training_step", *arguments, **named)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients without sending them, for `accumulate_grad_batches`."""
        with self.model.no_sync():
            yield

    def on_train_end(self) -> None:
        """Bring all workers to one model."""
        super().on_train_end()
        finish(self.model, self.optimizers[0])

    def on_exception(self, exception: BaseException) -> None:
        """Remember that workers may have come to different places."""
        self._failed = True
        super().on_exception(exception)

    def teardown(self) -> None:
        """Give module and optimizer back; after an error nobody waits for the others any more."""
        if self.optimizers and isinstance(self.optimizers[0], DistributedOptimizer) and not self._failed:
            self.model, optimizer = undistribute(self.model, self.optimizers[0])
            self.optimizers = [optimizer]
        super().teardown()

    # ------------------------------------------------------------------------------------------ checkpoints

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return the state of the optimizer; what ranks remember is saved beside."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`.*` remembers something on every rank")
            return super().optimizer_state(optimizer)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save Lightning's file and, unless it holds weights alone, what every rank remembers."""
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if "optimizer_states" in checkpoint:
            save(_beside(filepath), self.model, self.optimizers[0])

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint with the folder beside it."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shutil.rmtree(_beside(filepath), ignore_errors=True)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Read Lightning's file; what ranks remember is restored with the optimizer."""
        self._resumed_from = checkpoint_path
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *arguments, **named)
        return loaded

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the optimizer, and what this rank remembers."""
        super().load_optimizer_state_dict(checkpoint)
        if self._resumed_from is not None:
            resume(_beside(self._resumed_from), self.model, self.optimizers[0])


def _beside(file: Any) -> Path:
    if "://" in str(file):
        raise ContractError(
            f"{file} is no path of this machine: every rank keeps its memory in a folder beside the checkpoint. Save "
            "to a shared file system"
        )
    return Path(f"{file}.laconic")


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
