"""The memory that plain data parallelism needs on each GPU, so that a plan can say that a model does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.profile.gpus.table import Gpu, Precision
from laconic.profile.zoo import Tensor, canonical, model

Optimizer = str  # "adam" or "sgd", which has momentum
STATES = {"adam": 2, "sgd": 1}
RESERVED_SHARE = 0.08  # of the GPU's memory: context, libraries' work spaces, gaps between allocations
LARGEST_BATCH = 64
MARGIN = 1.6  # a proposed batch leaves so many times the estimated activations: some programs needed that much


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU; `activations` is an estimate from the layers' definitions, the rest is exact."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations


def tensors_of(subject: str | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors of a model given by name, or the given tensors themselves."""
    return model(canonical(subject)) if isinstance(subject, str) else tuple(subject)


def usual_optimizer(tensors: Sequence[Tensor]) -> Optimizer:
    """Return the optimizer with which the models' authors trained: SGD with momentum for images, Adam for text."""
    return "sgd" if any(tensor.kind == "convolution" for tensor in tensors) else "adam"


def checked(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer's name, or raise an error that lists the known ones."""
    if optimizer not in STATES:
        raise LaconicError(f"no optimizer {optimizer!r} here; write one of {', '.join(STATES)}")
    return optimizer


def memory_of(
    subject: str | Sequence[Tensor], batch: int, precision: Precision = "fp32", optimizer: Optimizer | None = None
) -> Memory:
    """Return the memory of one worker: parameters, gradients and states in 32 bits, as in automatic mixed precision.

    16-bit training halves activations, but keeps a 16-bit copy of the parameters beside them.
    """
    tensors = tensors_of(subject)
    elements = sum(tensor.elements for tensor in tensors)
    states = STATES[checked(optimizer or usual_optimizer(tensors))]
    half = is_half(precision)
    kept = activation_bytes(tensors, batch, precision) + (2 * elements if half else 0)
    return Memory(4.0 * elements, 4.0 * elements, 4.0 * states * elements, kept)


def is_half(precision: str | None) -> bool:
    """Return whether a precision computes with weights of 16 bits."""
    return precision in ("fp16", "bf16")


def activation_bytes(tensors: Sequence[Tensor], batch: int, precision: Precision) -> float:
    """Return the estimated bytes of what forward keeps for backward, none of it computed again."""
    return batch * sum(tensor.kept for tensor in tensors) * (2 if is_half(precision) else 4)


def memory_bytes(
    subject: str | Sequence[Tensor], batch: int, precision: Precision = "fp32", optimizer: Optimizer | None = None
) -> float:
    """Return all bytes that one worker of plain data parallelism holds."""
    return memory_of(subject, batch, precision, optimizer).total


def usable_bytes(gpu: Gpu) -> float:
    """Return the bytes of a GPU's memory that are left for a model."""
    return (1 - RESERVED_SHARE) * gpu.memory_bytes


def default_batch(
    subject: str | Sequence[Tensor], gpu: Gpu, precision: Precision, optimizer: Optimizer | None = None
) -> int:
    """Return the largest batch that fits, a power of two up to 64; 1 where none does."""
    batch = LARGEST_BATCH
    while batch > 1:
        need = memory_of(subject, batch, precision, optimizer)
        if need.total + (MARGIN - 1) * need.activations <= usable_bytes(gpu):
            break
        batch //= 2
    return batch
