"""Fixed point: multiples of a power of two that is known beforehand, summed as integers by the collective."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_WORD = 16  # bits


@technique(
    "gupta_fixed_point",
    aliases=["fixed_point"],
    paper="Gupta, Agrawal, Gopalakrishnan, Narayanan, ICML 2015",
    holds="<2, 14> fixed point: steps of 2^-14 from -2 to 2 - 2^-14, rounded at random with the right chances",
    formula="Q(x)_i = 2^-F·k, k at random a neighbour of 2^F·x_i, cut to 16 bits",
)
@dataclass(frozen=True)
class FixedPoint(Compressor):
    """Fixed-point numbers of 16 bits, rounded at random so that the mean is right, and cut to their range.

    Reading chosen: the paper's number format for arithmetic, on messages. No scale is sent, and integer sums are exact
    in any order. With 16 bits of sum, log2 N bits behind the point are given up for head-room, and two numbers are sent
    in an integer of 32 bits, which transports can add; with 32 bits nothing is given up, at float32's bytes. Beyond the
    range, which is 2 on both sides with 14 bits behind the point, values are cut, infinite ones too; NaN is sent as
    zero.
    """

    fraction: int = knob(14, low=0, high=_WORD - 1, doc="bits behind the point, of 16")
    sum_bits: int = knob(
        16, choices=(16, 32), doc="bits of a sum on the wire: 16 give up some of the fraction for head-room"
    )
    rounding: str = knob(
        "stochastic", choices=("stochastic", "nearest"), doc="how values are rounded to multiples of the last bit"
    )

    def room(self, size: int) -> int:
        """Return how many bits of the fraction are given up for sums of `size` workers."""
        return (size - 1).bit_length() if self.sum_bits == _WORD else 0

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        room = self.room(meet.size)
        if room >= _WORD or meet.size > 2**_WORD:
            raise StrategyError(f"sums of {meet.size} workers' words do not fit in {self.sum_bits} bits: write int8")
        flat, step = x.reshape(-1).float(), 2.0 ** (room - self.fraction)
        draws = kernels.uniform(meet.key(), 0, flat.numel(), x.device) if self.rounding == "stochastic" else None
        words = to_words(flat, step, _WORD - room, draws)
        if self.sum_bits == _WORD:
            total = unpaired((yield meet.sum(paired(words, meet.size))), meet.size)[: flat.numel()]
        else:
            total = yield meet.sum(words)
        mean, sent = total.double() * step / meet.size, words * step
        return Outcome(mean.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def ring_bits(self, size: int) -> int | None:
        return 32 if self.sum_bits == _WORD else _WORD + (size - 1).bit_length()

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 * (-(-spec.numel // 2) if self.sum_bits == _WORD else spec.numel)


def to_words(x: Tensor, step: float, bits: int, draws: Tensor | None) -> Tensor:
    """Return multiples of `step` as int32 of so many bits: rounded up where the draw is below the remainder, or to the
    nearest without draws."""
    half = 2.0 ** (bits - 1)
    scaled = (x * (1 / step)).nan_to_num(0.0, math.inf, -math.inf).clamp(-half, half - 1)
    whole = scaled.floor()
    rest = scaled - whole
    return (whole + (rest >= 0.5 if draws is None else draws < rest)).to(torch.int32)


def paired(words: Tensor, size: int) -> Tensor:
    """Return two numbers in one integer, such that sums of `size` such integers contain both sums.

    The second number is made non-negative, so that nothing is borrowed from the first.
    """
    first, second = torch.nn.functional.pad(words, (0, words.numel() % 2)).view(-1, 2).unbind(1)
    return (first << _WORD) + (second + _shift(size))


def unpaired(total: Tensor, size: int) -> Tensor:
    """Return the sums of the numbers, in their order."""
    first, second = total >> _WORD, (total & 2**_WORD - 1) - size * _shift(size)
    return torch.stack([first, second], dim=1).view(-1)


def _shift(size: int) -> int:
    return int(2 ** (_WORD - 1) >> (size - 1).bit_length())
