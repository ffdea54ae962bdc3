"""Transformers of any size by one rule: their layers, their batch, and the GPUs of which one worker is made.

The rule is that of the measured ladder (6 layers of 384, 8 of 512), continued: a model's width is 64 for each of its
layers. It trains on 64 Ki tokens a step at 10 M parameters and on a number that grows with the square root of the size
(5.5 M at 70 B), and a worker is the least power of two of GPUs whose memory holds the model with its gradients and the
optimizer's state; these GPUs count as one that is so many times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import cbrt, ceil, log10, sqrt

from laconic.frontier.tables import FrontierError
from laconic.profile.gpus import Gpu, default_batch, gpu, memory_bytes, profile_of, usable_bytes
from laconic.profile.zoo import Tensor, gpt2
from laconic.values.profile import Profile, Seconds

LEAST_SIZE, MOST_SIZE = 3e6, 70e9
SIZES = (3e6, 10e6, 30e6, 100e6, 300e6, 1e9, 3e9, 7e9, 20e9, 70e9)
CHIP = "H200"
_WIDTH = 64
_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9}


@dataclass(frozen=True)
class Shape:
    """A transformer of about `size` parameters that so many workers train."""

    size: float
    workers: int
    vocabulary: int = 256

    @property
    def layers(self) -> int:
        return max(2, round(cbrt(self.size / (12 * _WIDTH**2))))

    @property
    def hidden(self) -> int:
        return _WIDTH * max(2, round(sqrt(self.size / (12 * self.layers)) / _WIDTH))

    @property
    def context(self) -> int:
        return 512 if self.size < 100e6 else 1024 if self.size < 3e9 else 4096

    @property
    def tokens_per_step(self) -> float:
        return 65536 * sqrt(self.size / 10e6)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(gpt2(self.hidden, self.layers, self.context, self.vocabulary, self.context))

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def gpus(self) -> int:
        """The GPUs of one worker."""
        count = 1
        while memory_bytes(self.tensors, 1, "bf16", "adam") > usable_bytes(_joined(count)):
            count *= 2
        return count

    @property
    def chip(self) -> Gpu:
        """The GPUs of one worker as one."""
        return _joined(self.gpus)

    def profile(self) -> Profile:
        """Return a worker's step: micro-batches that fit, one after another; gradients leave in the last backward.

        The earlier ones count as part of the forward pass, during which nothing is sent.
        """
        sequences = max(1, round(self.tokens_per_step / self.workers / self.context))
        passes = ceil(sequences / default_batch(self.tensors, self.chip, "bf16", "adam"))
        one = profile_of(self.tensors, self.chip, ceil(sequences / passes), "bf16", "adam")
        earlier = (passes - 1) * (one.model.forward.median + one.model.backward.median)
        model = replace(one.model, forward=Seconds(one.model.forward.median + earlier))
        return replace(one, model=model)


@cache
def _joined(count: int) -> Gpu:
    """Return so many GPUs as one."""
    chip = gpu(CHIP)
    return replace(
        chip,
        name=chip.name if count == 1 else f"{count} {chip.name}",
        fp32=count * chip.fp32,
        half=count * chip.half,
        memory_bytes=count * chip.memory_bytes,
        memory_bytes_per_second=count * chip.memory_bytes_per_second,
    )


def read_size(text: str) -> float:
    """Return a number of parameters from "30m", "1b" or "7e9"."""
    short = text.strip().lower()
    try:
        size = float(short[:-1]) * _SUFFIXES[short[-1]] if short[-1:] in _SUFFIXES else float(short)
    except ValueError:
        raise FrontierError(f'"{text}" is no size of a model: write "30m", "1b" or "7e9" parameters') from None
    if not LEAST_SIZE <= size <= MOST_SIZE:
        raise FrontierError(
            f'a model of "{text}" parameters is outside the map, which reaches from {write_size(LEAST_SIZE)} to '
            f"{write_size(MOST_SIZE)}"
        )
    return size


def write_size(size: float) -> str:
    """Return a number of parameters as people write it: 3 M, 70 B."""
    unit, name = (1e9, "B") if log10(size) >= 9 else (1e6, "M")
    return f"{size / unit:.3g} {name}"
