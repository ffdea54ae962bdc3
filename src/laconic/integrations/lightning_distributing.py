"""What Lightning's strategies have in common here: they distribute a module's optimizer, finish, and save memories.

Both packages of the framework work, `lightning` and `pytorch_lightning`: import the one that you use before this
module.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from laconic.api.distribute import distribute, undistribute
from laconic.errors import ContractError
from laconic.runtime.checkpoint import checkpoint as save
from laconic.runtime.finish import finish
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.strategy import Strategy

if find_spec("lightning") is None or ("pytorch_lightning" in sys.modules and "lightning" not in sys.modules):
    from pytorch_lightning import Callback
    from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
else:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

__all__ = ["Callback", "DDPStrategy", "Distributing", "ModelParallelStrategy", "beside"]


class Distributing:
    """A strategy of Lightning whose module and optimizer communicate as a sentence says; mixed into one of Lightning's.

    - `strategy`: as for `laconic.distribute`.
    - `options`: those of `laconic.distribute`, as a dict.
    - `named`: those of Lightning's strategy.
    """

    model: Any  # Lightning's properties
    optimizers: Any
    is_global_zero: Any

    def __init__(
        self, strategy: str | Strategy | None = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> None:
        super().__init__(**named)
        self._sentence, self._options = strategy, dict(options or {})
        self._failed = False

    @property
    def distributed_module(self) -> nn.Module:
        """The module that is distributed."""
        return self.model  # type: ignore[no-any-return]

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the module's optimizer, and distribute both."""
        super().setup_optimizers(trainer)  # type: ignore[misc]
        if len(self.optimizers) != 1:
            raise ContractError(
                f"this module has {len(self.optimizers)} optimizers, and a strategy distributes a module with one: "
                "give the parameters to one optimizer, in several groups"
            )
        _, optimizer = distribute(self.distributed_module, self.optimizers[0], self._sentence, **self._options)
        self.optimizers = [optimizer]

    def on_train_end(self) -> None:
        """Bring all workers to one model."""
        super().on_train_end()  # type: ignore[misc]
        finish(self.distributed_module, self.optimizers[0])

    def on_exception(self, exception: BaseException) -> None:
        """Remember that workers may have come to different places."""
        self._failed = True
        super().on_exception(exception)  # type: ignore[misc]

    def teardown(self) -> None:
        """Give module and optimizer back; after an error nobody waits for the others any more."""
        if self.optimizers and isinstance(self.optimizers[0], DistributedOptimizer) and not self._failed:
            _, optimizer = undistribute(self.distributed_module, self.optimizers[0])
            self.optimizers = [optimizer]
        super().teardown()  # type: ignore[misc]

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save Lightning's checkpoint and, unless it holds weights alone, what every rank remembers."""
        whole = "optimizer_states" in checkpoint
        super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
        if whole:
            save(beside(filepath), self.distributed_module, self.optimizers[0])

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint with the folder beside it."""
        super().remove_checkpoint(filepath)  # type: ignore[misc]
        if self.is_global_zero:
            shutil.rmtree(beside(filepath), ignore_errors=True)


def beside(checkpoint: Any) -> Path:
    """Return the folder of every rank's memory, which stands beside a checkpoint."""
    if "://" in str(checkpoint):
        raise ContractError(
            f"{checkpoint} is no path of this machine: every rank keeps its memory in a folder beside the checkpoint. "
            "Save to a shared file system"
        )
    return Path(f"{checkpoint}.laconic")
