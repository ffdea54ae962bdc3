"""Transformers: `LaconicTrainer(strategy=…)` in the place of `Trainer(…)`.

The trainer makes its optimizer as always, and then both model and optimizer are distributed. Accelerate, which works
inside a trainer, finds them prepared and does not wrap the model in DDP.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from transformers import Trainer

from laconic.errors import ContractError
from laconic.integrations.accelerate import prepare
from laconic.runtime.checkpoint import checkpoint, resume
from laconic.runtime.finish import finish
from laconic.strategy import Strategy

_FOLDER = "laconic"  # in each of the trainer's checkpoints: every rank's memory


class LaconicMixin:
    """What makes a trainer distributed: `class Mine(LaconicMixin, SFTTrainer)` is one, too.

    A trainer's checkpoints also hold what each rank remembers, and resuming from them restores it. After `train()` all
    workers hold one model: the average, where a local rule let them diverge, or the best, where the trainer loads it.

    - `strategy`: as for `laconic.distribute`. Rules that sum gradients over steps (`accumulate`) are refused, since a
      trainer zeroes gradients in every step; `gradient_accumulation_steps` does the same.
    """

    def __init__(self, *arguments: Any, strategy: str | Strategy | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._strategy = strategy
        self._is_distributed = False

    def create_optimizer(self, *arguments: Any) -> Any:
        """Make the trainer's optimizer and distribute it together with the model."""
        trainer: Any = self
        optimizer = super().create_optimizer(*arguments)  # type: ignore[misc]
        if self._is_distributed:
            return optimizer
        _, trainer.optimizer = prepare(trainer.accelerator, self._strategy, trainer.model, optimizer)
        self._is_distributed = True
        if trainer.optimizer.optimizer.session.arrangement.micro_batches > 1:
            raise ContractError(
                f"`{self._strategy}` sums gradients over steps, and a Trainer zeroes them after each: set "
                "gradient_accumulation_steps in its TrainingArguments instead"
            )
        return trainer.optimizer

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train, and bring all workers to one model."""
        trainer: Any = self
        output = super().train(*arguments, **named)  # type: ignore[misc]
        if not trainer.args.load_best_model_at_end:
            finish(trainer.model, trainer.optimizer.optimizer)
        return output

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        trainer: Any = self
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`.*` remembers something on every rank")  # it is saved beside
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        checkpoint(Path(output_dir) / _FOLDER, trainer.model, trainer.optimizer.optimizer)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        trainer: Any = self
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is not None:
            resume(Path(checkpoint) / _FOLDER, trainer.model, trainer.optimizer.optimizer)


class LaconicTrainer(LaconicMixin, Trainer):
    """A `Trainer` whose workers communicate as a strategy says."""
