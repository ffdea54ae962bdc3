"""Estimates of layer times on a GPU that is not at hand: from its peaks, its power, its memory bandwidth, and the share
of them that training reaches.

A layer takes its operations over the reachable peak (what fills the chip), the same operations over what the board's
power allows (large chips clock down when they are full), and its bytes over the reachable memory rate: a roofline
(Williams, Waterman, Patterson, CACM 2009) whose limits add up, since a layer's kernels run one after another. A step
takes no less than the host needs to launch it. The reachable shares are one number for each precision and kind of
layer, whatever the model and the GPU; `bench/gpu_table.py` fits them and compares them with measurements, and the
profile's ranges reflect the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError
from laconic.profile.gpus.memory import (
    Optimizer,
    activation_bytes,
    checked,
    default_batch,
    memory_bytes,
    tensors_of,
    usable_bytes,
    usual_optimizer,
)
from laconic.profile.gpus.table import Gpu, Precision, gpu
from laconic.profile.zoo import Tensor, canonical
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime

OPTIMIZER_PASSES = {"adam": 22, "sgd": 9}  # over the parameters in 32 bits, as torch's own `foreach` loops were timed
OPTIMIZER_SHARE = 0.85  # of the memory's rate
LOW, HIGH = (
    0.74,
    1.69,
)  # a tenth of the measurements lay below the first times their prediction, a tenth above the second


@dataclass(frozen=True)
class Shares:
    """The shares that training reaches of a peak, by precision and kind of layer, and of the memory bandwidth; and the
    operations that a joule allows."""

    fp32_convolution: float = 1.0  # of the operations as defined: fast algorithms need fewer
    fp32_matrix: float = 0.85
    tf32_convolution: float = 0.42
    tf32_matrix: float = 0.7
    half_convolution: float = 1.0
    half_matrix: float = 0.9
    memory: float = 0.7
    half_memory: float = 0.95  # counted at two bytes a value, though some stay in 32 bits
    fp32_per_joule: float = 0.41e12
    tf32_per_joule: float = 0.5e12
    half_per_joule: float = 0.55e12
    host_seconds_per_tensor: float = 1.4e-4  # to launch its forward and backward pass from Python

    def of(self, precision: Precision) -> tuple[float, float, float, float]:
        """Return the shares for convolutions, matrices and memory at a precision, and the operations of a joule."""
        name = "half" if precision in ("fp16", "bf16") else precision
        memory = self.half_memory if name == "half" else self.memory
        convolution, matrix, joule = (
            getattr(self, f"{name}_{part}") for part in ("convolution", "matrix", "per_joule")
        )
        return convolution, matrix, memory, joule


SHARES = Shares()


def profile_of(
    model: str | Sequence[Tensor],
    gpu: str | Gpu,
    batch: int | None = None,
    precision: Precision | None = None,
    optimizer: Optimizer | None = None,
) -> Profile:
    """Return the estimated profile of one worker's training step; gradients arrive from the last layer to the first.

    The default batch is the largest that fits, the default precision the most common one on this GPU. The profile's
    `machine` says whether the model fits.
    """
    chip, tensors = _chip(gpu), tensors_of(model)
    precision = precision or chip.usual_precision
    optimizer = optimizer or usual_optimizer(tensors)
    batch = default_batch(tensors, chip, precision, optimizer) if batch is None else batch
    if batch < 1:
        raise LaconicError(f"a batch has at least one sample, not {batch}")
    forward = forward_seconds(tensors, chip, batch, precision)
    total = float(forward.sum())
    tensor_times = [
        TensorTime(tensor.name, tensor.shape, "float32", 2 * float(seconds))
        for tensor, seconds in zip(reversed(tensors), reversed(forward), strict=True)
    ]
    need = memory_bytes(tensors, batch, precision, optimizer)
    known = {
        "estimated": True,
        "model": canonical(model) if isinstance(model, str) else "",
        "gpu": chip.name,
        "batch": batch,
        "precision": precision,
        "optimizer": optimizer,
        "memory_bytes": need,
        "activation_bytes": activation_bytes(tensors, batch, precision),
        "fits": need <= usable_bytes(chip),
    }
    step = step_seconds(tensors, chip, optimizer)
    times = ModelTimes(tuple(tensor_times), _about(total), _about(2 * total), _about(step))
    return Profile(times, machine=known, optimizer=optimizer)


def forward_seconds(
    tensors: Sequence[Tensor], chip: Gpu, batch: int, precision: Precision, shares: Shares = SHARES
) -> NDArray[np.float64]:
    """Return the forward seconds of each tensor; where launching by the host is slower, its time is divided instead."""
    peak = chip.peak(precision)
    operations, moved, after, elements, convolution = _columns(tuple(tensors))
    of_convolution, of_matrix, of_memory, per_joule = shares.of(precision)
    width = 2 if precision in ("fp16", "bf16") else 4
    rate = chip.memory_bytes_per_second * of_memory
    limits = 1 / (peak * np.where(convolution, of_convolution, of_matrix)) + 1 / (chip.watts * per_joule)
    moving = (batch * (moved + after) + elements) * width / rate
    seconds: NDArray[np.float64] = 2 * batch * operations * limits + moving
    host = shares.host_seconds_per_tensor * len(elements) / 3
    return np.asarray(seconds * max(1.0, host / float(seconds.sum())))


def step_seconds(tensors: Sequence[Tensor], chip: Gpu, optimizer: Optimizer) -> float:
    """Return the seconds of the optimizer's step: passes over parameters, gradients and states in 32 bits."""
    nbytes = 4 * sum(tensor.elements for tensor in tensors)
    return OPTIMIZER_PASSES[checked(optimizer)] * nbytes / (chip.memory_bytes_per_second * OPTIMIZER_SHARE)


@lru_cache(maxsize=64)
def _columns(tensors: tuple[Tensor, ...]) -> NDArray[np.float64]:
    rows = [(t.operations, t.moved, t.after, t.elements, t.kind == "convolution") for t in tensors]
    return np.array(rows, dtype=float).T


def _chip(name: str | Gpu) -> Gpu:
    return gpu(name) if isinstance(name, str) else name


def _about(seconds: float) -> Seconds:
    """Return an estimate with the range in which four of five measurements lay around their estimate."""
    return Seconds(seconds, LOW * seconds, HIGH * seconds, samples=0)
