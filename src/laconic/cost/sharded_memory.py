"""The memory of one GPU in sharded training, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.reading import NotNegative


@dataclass(frozen=True)
class StateBytes:
    """The bytes of each parameter that training keeps: in mixed precision 2, 2 and, for Adam, 12.

    The optimizer's are the exact weights of 32 bits, where the model computes with 16, and its own states.
    """

    weights: float = 2.0
    gradients: float = 2.0
    optimizer: float = 12.0

    @classmethod
    def of(cls, half: bool, states: int) -> StateBytes:
        """Return the bytes for weights of 16 or 32 bits, and an optimizer with so many states: Adam has two."""
        return cls(2.0, 2.0, 4.0 + 4.0 * states) if half else cls(4.0, 4.0, 4.0 * states)


@dataclass(frozen=True)
class GpuMemory:
    """Bytes on one GPU by part.

    - `weights`, `gradients`, `optimizer`: what this GPU owns of them, or all of them where they are not sharded.
    - `gathered`: weights and gradients of the layers that compute just now, whole.
    - `copies`: of weights that a method keeps.
    - `errors`: memories of what was left out of gradients.
    - `activations`: as estimated; 0 where nothing is known of them.
    """

    weights: NotNegative
    gradients: NotNegative
    optimizer: NotNegative
    gathered: NotNegative = 0.0
    copies: NotNegative = 0.0
    errors: NotNegative = 0.0
    activations: NotNegative = 0.0

    @property
    def state(self) -> float:
        """The bytes of weights, gradients and optimizer, of which ZeRO's formulas tell."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.copies + self.errors + self.activations


def model_state(parameters: float, owners: int, stage: int, each: StateBytes | None = None) -> GpuMemory:
    """Return the memory of a model's state on each of the owners, by ZeRO's stage; stage 0 is plain data parallelism.

    In bytes a parameter, with mixed-precision Adam and P owners: 16, 4 + 12/P, 2 + 14/P and 16/P.
    """
    each = each or StateBytes()
    weights, gradients, optimizer = (
        kept * parameters / (owners if stage >= sharded_from else 1)
        for kept, sharded_from in ((each.weights, 3), (each.gradients, 2), (each.optimizer, 1))
    )
    return GpuMemory(weights, gradients, optimizer)
