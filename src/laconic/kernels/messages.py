"""One message for a list of tensors, and the mean of such messages: the hot loops, one tensor after another.

A tensor's part of a message is its bits or codes and then its scales, as float32; parts lie one behind another. Where a
GPU has bodies for lists, they write and read the same bytes in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.fallbacks import composed

WIDTHS = {1: 2, 7: 4, 127: 8}
"""The number of bits of a code in a message, by the number of levels above zero."""


@composed
def encode_signs(body: Any, xs: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    """Encode each v = x + error as its signs and the mean of |v|; `error` keeps v minus the decoded value, where that
    is finite."""
    fed = [body.feed_signs(x, error) for x, error in zip(xs, errors, strict=True)]
    for error in errors:
        finite(error)
    return torch.cat([part for bits, scale in fed for part in (bits, as_bytes(scale.view(1)))])


@composed
def mean_of_signs(body: Any, rows: Tensor, lengths: Sequence[int], out: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Return the means of tensors of these lengths from the messages of all workers, a row each, added up in the order
    of rows; they are written to `out`, if given."""

    def add(total: Tensor, part: Tensor) -> None:
        body.add_signs(total, part[:-4], part[-4:].clone().view(torch.float32)[0])

    return written(_means(rows, lengths, [-(-n // 8) + 4 for n in lengths], add), out)


@composed
def encode_levels(
    body: Any,
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    bucket: int,
    steps: int,
    norm: str,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    """Encode each v = x + error, or x where there is no memory, as codes, drawn with its own key, and a scale a bucket.

    The scale is the bucket's norm (`norm`: l2 or max). `error` keeps v minus the decoded value (or minus the tensor's
    share of it), where that is finite.
    """
    parts = []
    for i, (x, key) in enumerate(zip(xs, keys, strict=True)):
        v = x if errors is None else errors[i].add_(x)
        scales = norms(body, v, bucket, norm)
        if WIDTHS[steps] == 4:
            codes = body.quantize_in_nibbles(v, scales, bucket, steps, key)
        else:
            codes = pack_codes(body.quantize(v, scales, bucket, steps, key), WIDTHS[steps])
        parts += [codes, as_bytes(scales)]
        if errors is not None:
            decoded = torch.zeros_like(v)
            _add_levels(body, decoded, codes, scales, bucket, steps)
            finite(v.sub_(decoded if shares is None else decoded.mul_(shares[i])))
    return torch.cat(parts)


def as_bytes(scales: Tensor) -> Tensor:
    """Return these floats as bytes, with one NaN for all: which of its many patterns arithmetic makes differs between
    devices."""
    return torch.where(scales.isnan(), torch.nan, scales).view(torch.uint8)


def finite(error: Tensor) -> Tensor:
    """Set values that are not finite to zero, in place: an overflow must not be remembered for ever."""
    return error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


@composed
def mean_of_levels(
    body: Any,
    rows: Tensor,
    lengths: Sequence[int],
    bucket: int,
    steps: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    """Return the means of tensors of these lengths from such messages, a row each; each is multiplied by its share, and
    written to `out`, if given."""
    each = 8 // WIDTHS[steps]

    def add(total: Tensor, part: Tensor) -> None:
        codes, scales = part.tensor_split([-(-total.numel() // each)])
        _add_levels(body, total, codes, scales.clone().view(torch.float32), bucket, steps)

    sizes = [-(-n // each) + 4 * -(-n // bucket) for n in lengths]
    return written(_scaled(_means(rows, lengths, sizes, add), shares), out)


def norms(body: Any, x: Tensor, bucket: int, norm: str) -> Tensor:
    """Return each bucket's l2 norm or largest magnitude. Roots are taken in float64, and so rounded correctly: those of
    some libraries in float32 are not."""
    found: Tensor = body.bucket_scales(x, bucket, norm)
    return found.double().sqrt().float() if norm == "l2" else found


@composed
def passing(body: Any, x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return what `select` returns, and also NaN values."""
    if x.sum().isnan():
        places = torch.nonzero(~(x.abs() < threshold)).view(-1)
        return places, x[places]
    found: tuple[Tensor, Tensor] = body.select(x, threshold)
    return found


@composed
def feed_selected(body: Any, x: Tensor, error: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    """Error feedback with a threshold: return the places and values of v = x + error that pass, and leave the rest in
    `error`."""
    error += x
    places, values = passing(body, error, threshold)
    error[places] -= values
    return places, values


@composed
def passing_each(
    body: Any, xs: Sequence[Tensor], thresholds: Sequence[float | Tensor] | Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Return `passing` of each tensor with its own threshold."""
    return [passing(body, x, threshold) for x, threshold in zip(xs, thresholds, strict=True)]


@composed
def feed_selected_each(
    body: Any, xs: Sequence[Tensor], errors: Sequence[Tensor], thresholds: Sequence[float | Tensor] | Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Return `feed_selected` of each tensor with its own memory and threshold."""
    return [feed_selected(body, *each) for each in zip(xs, errors, thresholds, strict=True)]


def _add_levels(body: Any, total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    if WIDTHS[steps] == 4:
        body.add_levels_of_nibbles(total, packed, scales, bucket, steps)
    else:
        body.add_levels(total, unpack_codes(packed, WIDTHS[steps], total.numel()), scales, bucket, steps)


def _means(rows: Tensor, lengths: Sequence[int], sizes: Sequence[int], add: Any) -> list[Tensor]:
    count = torch.tensor(
        float(len(rows)), device=rows.device
    )  # a tensor, since a GPU would multiply by the inverse of a Python number
    means = []
    for n, parts in zip(lengths, rows.split(list(sizes), dim=1), strict=True):
        total = torch.zeros(n, device=rows.device)
        for part in parts:
            add(total, part)
        means.append(total.div_(count))
    return means


def means_of_parts(
    rows: Tensor,
    lengths: Sequence[int],
    sizes: Sequence[int],
    values: Callable[[Tensor, int], Tensor],
    out: Sequence[Tensor] | None,
    shares: Sequence[float] | None,
) -> list[Tensor]:
    """Return the means of tensors whose values of one message `values` returns; the mean of one is these values."""
    if len(rows) > 1:

        def add(total: Tensor, part: Tensor) -> None:
            total += values(part, total.numel())

        found = _means(rows, lengths, sizes, add)
    else:
        found = [values(part, n) for part, n in zip(rows[0].split(list(sizes)), lengths, strict=True)]
    return written(_scaled(found, shares), out)


def _scaled(means: list[Tensor], shares: Sequence[float] | None) -> list[Tensor]:
    return means if shares is None else [mean * share for mean, share in zip(means, shares, strict=True)]


def written(tensors: list[Tensor], out: Sequence[Tensor] | None) -> list[Tensor]:
    """Return these tensors, or `out` with their values."""
    if out is None:
        return tensors
    torch._foreach_copy_(list(out), tensors)
    return list(out)


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """Pack codes of a width that divides eight, the first in a byte's lowest place."""
    if width == 8:
        return codes
    each = 8 // width
    rows = torch.nn.functional.pad(codes, (0, -codes.numel() % each)).view(-1, each)
    packed = rows[:, 0].clone()
    for k in range(1, each):
        packed |= rows[:, k] << (width * k)
    return packed


def unpack_codes(packed: Tensor, width: int, count: int) -> Tensor:
    """Return the first `count` codes of such bytes."""
    if width == 8:
        return packed[:count]
    places = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & ((1 << width) - 1)).view(-1)[:count]
