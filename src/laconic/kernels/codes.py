"""Messages of small codes, encoded one tensor after another as in `messages`; a GPU writes and reads the same bytes for
a list at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.fallbacks import composed
from laconic.kernels.messages import _means, as_bytes, finite
from laconic.kernels.reference.columns import column_means, of_columns
from laconic.kernels.reference.exponents import WIDTH, exponents_of, powers_of
from laconic.kernels.reference.signs import unpack_signs
from laconic.kernels.reference.ternaries import pack_ternaries
from laconic.kernels.reference.trits import largest_trit, pack_trits, trits_of, unpack_trits


@composed
def encode_trits(body: Any, xs: Sequence[Tensor], errors: Sequence[Tensor] | None, sparsity: float) -> Tensor:
    """Encode each v = x + error, or x where there is no memory, as a scale M and ternary digits.

    M is `sparsity` times the largest magnitude; a value's digit is its sign where |v| is at least M/2, else zero, and
    five digits share a byte (`pack_trits`). `error` keeps v minus M times the digit, where that is finite. A tensor
    that contains a value that is not finite decodes to values that are not finite.
    """
    parts = []
    for i, x in enumerate(xs):
        v = x if errors is None else errors[i].add_(x)
        most = largest_trit(v, sparsity)
        digits = trits_of(v, most)
        parts += [most.view(1).view(torch.uint8), pack_trits(digits)]
        if errors is not None:
            finite(v.sub_(digits.float() * most))
    return torch.cat(parts)


@composed
def mean_of_trits(body: Any, rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Return the means of tensors of these lengths from such messages, a row each, added up in the order of rows."""

    def add(total: Tensor, part: Tensor) -> None:
        digits = unpack_trits(part[4:], total.numel())
        total += digits.float() * part[:4].clone().view(torch.float32)

    return _means(rows, lengths, [4 + -(-n // 5) for n in lengths], add)


@composed
def encode_columns(body: Any, xs: Sequence[Tensor], errors: Sequence[Tensor] | None, columns: Sequence[int]) -> Tensor:
    """Encode each v = x + error, or x where there is no memory, as a matrix of so many columns with two means a column.

    The message has the signs, and the means of each column below zero and from zero on (`column_means`). `error` keeps
    v minus the mean that stands for it, where that is finite.
    """
    parts = []
    for i, (x, width) in enumerate(zip(xs, columns, strict=True)):
        v = (x if errors is None else errors[i].add_(x)).view(-1, width)
        means = column_means(v)
        parts += [body.pack_signs(v.view(-1)), as_bytes(means.view(-1))]
        if errors is not None:
            finite(v.sub_(of_columns(v >= 0, means)))
    return torch.cat(parts)


@composed
def mean_of_columns(body: Any, rows: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Return the flat means of matrices of these rows and columns from such messages, a row each."""
    lengths, widths = [r * c for r, c in shapes], iter([c for _, c in shapes for _ in rows])

    def add(total: Tensor, part: Tensor) -> None:
        n, width = total.numel(), next(widths)
        bits, pairs = part.tensor_split([-(-n // 8)])
        high = unpack_signs(bits, n).bool().view(-1, width)
        total += of_columns(high, pairs.clone().view(torch.float32).view(2, width)).view(-1)

    return _means(rows, lengths, [-(-r * c // 8) + 8 * c for r, c in shapes], add)


@composed
def encode_natural(body: Any, xs: Sequence[Tensor], errors: Sequence[Tensor] | None, keys: Sequence[int]) -> Tensor:
    """Encode each v = x + error, or x where there is no memory, as signs and powers of two, with the tensor's own key.

    Codes (`exponents_of`) take nine bits each without gaps, and each tensor's begin at a full byte. `error` keeps v
    minus the power of two, where that is finite.
    """
    parts = []
    for i, (x, key) in enumerate(zip(xs, keys, strict=True)):
        v = x if errors is None else errors[i].add_(x)
        exponents = exponents_of(v, key)
        parts.append(body.pack_numbers(exponents, WIDTH))
        if errors is not None:
            finite(v.sub_(powers_of(exponents)))
    return torch.cat(parts)


@composed
def decode_natural(body: Any, packed: Tensor, count: int) -> Tensor:
    """Return the values of one tensor's codes."""
    return powers_of(body.unpack_numbers(packed, WIDTH, count))


@composed
def mean_of_natural(body: Any, rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Return the means of tensors of these lengths from such messages, a row each, added up in the order of rows."""

    def add(total: Tensor, part: Tensor) -> None:
        total += decode_natural(body, part, total.numel())

    return _means(rows, lengths, [-(-n * WIDTH // 8) for n in lengths], add)


@composed
def encode_ternaries(body: Any, x: Tensor, scale: Tensor, key: int, room: int) -> Tensor:
    """Round to -1, 0 or 1 at random, so that `scale` times it is right in the mean, and pack each, plus one, in two
    bits.

    This is `quantize` with one level. The result is padded with zeros to `room` digits, a multiple of four.
    """
    return pack_ternaries(body.quantize(x, scale.view(1), max(1, x.numel()), 1, key), room)


@composed
def signs_of(body: Any, bits: Tensor, count: int) -> Tensor:
    """Return 1 where the bit is 1 and -1 where it is 0, for the first `count` bits."""
    signs = torch.zeros(count, device=bits.device)
    body.add_signs(signs, bits, signs.new_ones(()))
    return signs
