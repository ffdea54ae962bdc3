"""Blocks of consecutive values that share a scale: integers or short floats, in plain torch.

The scale is the block's largest magnitude, as a float32, or a power of two in a byte (E8M0). A block with a value that
is not finite has a scale that is not, and decodes to values that are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.kernels.draws import uniform
from laconic.kernels.reference.buckets import in_buckets
from laconic.kernels.reference.short_floats import ShortFloat, decoded, short_floats, signed

NO_NUMBER = 255  # E8M0's code for what is not finite
BIAS = 127


@dataclass(frozen=True)
class BlockFormat:
    """How values and scales of blocks are written; with block 0 a tensor has one scale."""

    values: str  # int8, int4, e4m3, e5m2 or e2m1
    scales: str  # float32 or e8m0
    block: int
    stochastic: bool = False  # whether values between two codes are rounded at random, so that the mean is right
    ceil: bool = True  # whether a power of two is large enough for the block's largest magnitude not to be cut

    @property
    def width(self) -> int:
        """The number of bits of a value's code."""
        return 4 if self.values in ("int4", "e2m1") else 8

    @property
    def whole(self) -> int:
        """The largest code of integers, in two's complement; 0 where values are short floats."""
        return {"int8": 127, "int4": 7}.get(self.values, 0)

    @property
    def scale_bytes(self) -> int:
        return 4 if self.scales == "float32" else 1

    def block_of(self, n: int) -> int:
        return self.block or max(1, n)

    def code_bytes(self, n: int) -> int:
        """Return how many bytes the codes of so many values take."""
        return -(-n * self.width // 8)

    def message_bytes(self, n: int) -> int:
        """Return how many bytes so many values take with their scales."""
        return self.code_bytes(n) + self.scale_bytes * -(-n // self.block_of(n))


def shares(rows: Tensor, most: Tensor) -> Tensor:
    """Return values as shares of the largest, by division: the reciprocal may be too large for a float. Finite values
    of a block that is not finite become zero."""
    return rows / torch.where(most.isnan(), torch.inf, most.where(most != 0, 1))


def integer_codes(rows: Tensor, most: Tensor, draws: Tensor | None = None, whole: int = 127) -> Tensor:
    """Return whole numbers of 1/`whole` of the largest magnitude, the nearest ones or at random neighbours.

    They are in two's complement, in a byte each, of which those up to 7 use the lower half.
    """
    levels = shares(rows, most) * whole
    codes = levels.round() if draws is None else (levels + draws).floor()
    return codes.nan_to_num(0.0).clamp(-whole, whole).to(torch.int8).view(torch.uint8) & (2 * whole + 1)


def integer_values(codes: Tensor, most: Tensor, whole: int = 127) -> Tensor:
    """Return the values of such codes. The divisor is a tensor: a GPU would multiply by the inverse of a number."""
    unused = 7 - whole.bit_length()
    levels = (codes << unused).view(torch.int8) >> unused  # the sign is repeated
    return levels.float() * (most / torch.full_like(most, whole))


def float_codes(rows: Tensor, most: Tensor, form: ShortFloat) -> Tensor:
    """Return short floats, scaled so that the largest magnitude is the format's."""
    scaled = (shares(rows, most) * form.most).clamp(-form.most, form.most)
    codes = scaled.to(_kind(form)).view(torch.uint8)
    return torch.where(scaled.isnan(), 127, codes).to(torch.uint8)


def float_values(codes: Tensor, most: Tensor, form: ShortFloat) -> Tensor:
    return codes.view(_kind(form)).float() * (1 / form.most) * most


def power_codes(largest: Tensor, form: ShortFloat, ceil: bool) -> Tensor:
    """Return a byte for each block: the power of two by which its values fit the format (`ceil`: none is cut)."""
    mantissa, exponent = torch.frexp(largest)
    top, power = torch.frexp(torch.tensor(form.most))
    codes = exponent - power + BIAS
    if ceil:
        codes += mantissa > top
    codes = torch.where(largest > 0, codes.clamp(0, NO_NUMBER - 1), 0)
    return torch.where(largest.isfinite(), codes, NO_NUMBER).to(torch.uint8)


def power_values(codes: Tensor) -> Tensor:
    """Return the powers of two that these bytes stand for."""
    powers = torch.ldexp(torch.ones_like(codes, dtype=torch.float32), codes.int() - BIAS)
    return torch.where(codes == NO_NUMBER, torch.nan, powers)


def block_codes(x: Tensor, largest: Tensor, how: BlockFormat, key: int) -> tuple[Tensor, Tensor]:
    """Return a code for each value, and a scale for each block, whose largest magnitudes are given."""
    rows = in_buckets(x, how.block_of(x.numel()))
    draws = uniform(key, 0, rows.numel(), x.device).view_as(rows) if how.stochastic else None
    if how.scales == "e8m0":
        form = short_floats()[how.values]
        scales = power_codes(largest, form, how.ceil)
        powers = power_values(scales)
        codes = signed(rows / powers.where(powers > 0, 1)[:, None], form, draws).to(torch.uint8)
    elif how.whole:
        codes, scales = integer_codes(rows, largest[:, None], draws, how.whole), largest
    else:
        codes, scales = float_codes(rows, largest[:, None], short_floats()[how.values]), largest
    return codes.reshape(-1)[: x.numel()], scales


def block_values(codes: Tensor, scales: Tensor, how: BlockFormat) -> Tensor:
    """Return the values of such codes and scales."""
    rows = in_buckets(codes, how.block_of(codes.numel()))
    if how.scales == "e8m0":
        values = decoded(rows.long(), short_floats()[how.values]) * power_values(scales)[:, None]
    elif how.whole:
        values = integer_values(rows, scales[:, None], how.whole)
    else:
        values = float_values(rows, scales[:, None], short_floats()[how.values])
    return values.reshape(-1)[: codes.numel()]


def _kind(form: ShortFloat) -> torch.dtype:
    return torch.float8_e4m3fn if form.mantissa == 3 else torch.float8_e5m2
