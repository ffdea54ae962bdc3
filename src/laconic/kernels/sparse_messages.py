"""Messages of a few places and their values, encoded one tensor after another as in `messages`; a GPU writes and reads
the same bytes for a list at once.

A tensor's part of a message is its places in ascending order, packed without gaps in the tensor's own number of bits,
and then the values there as float32. Where their number depends on the values, the part is `counted`: it begins with
the number, in four bytes, and has room for the largest number of places and values, with zeros where they are fewer, so
that the length of a message is known to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.fallbacks import composed
from laconic.kernels.messages import feed_selected, finite, passing


@composed
def encode_largest(
    body: Any, xs: Sequence[Tensor], errors: Sequence[Tensor] | None, counts: Sequence[int], widths: Sequence[int]
) -> Tensor:
    """Encode the largest magnitudes of each v = x + error, or x where there is no memory; `error` keeps the others
    that are finite.

    Of each tensor so many are sent, as `largest` chooses them, with places of so many bits.
    """
    parts = []
    for i, (x, count, width) in enumerate(zip(xs, counts, widths, strict=True)):
        v = x if errors is None else errors[i].add_(x)
        places = body.largest(v, count)
        values = v[places]
        parts += [body.pack_numbers(places, width), values.view(torch.uint8)]
        if errors is not None:
            v[places] = 0.0
            finite(v)
    return torch.cat(parts)


@composed
def encode_sampled(
    body: Any,
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    samples: Sequence[tuple[int, int]],
    most: Sequence[int],
    widths: Sequence[int],
    keys: Sequence[int],
) -> Tensor:
    """Encode of each v = x + error, or x where there is no memory, what passes its `sampled_limit`, at most so many, in
    counted parts; `error` keeps the others that are finite.

    A limit is given by how many values are sampled and which largest of them it is, with the tensor's own key.
    """
    parts = []
    for i, (x, (looked, k), key) in enumerate(zip(xs, samples, keys, strict=True)):
        error = None if errors is None else errors[i]
        limit = body.sampled_limit(x, error, looked, k, key)
        if error is None:
            places, values = passing(body, x, limit)
        else:
            places, values = feed_selected(body, x, error, limit)
        kept = first_or_largest(body, values, most[i])
        if kept is not None:
            if error is not None:
                error[places] = values
                error[places[kept]] = 0.0
            places, values = places[kept], values[kept]
        if error is not None:
            finite(error)
        written, room = body.pack_numbers(places, widths[i]), -(-most[i] * widths[i] // 8)
        parts.append(counted_part(written, values.view(torch.uint8), room, most[i]))
    return torch.cat(parts)


def counted_part(places: Tensor, values: Tensor, room: int, most: int) -> Tensor:
    """Return the part of a message with the bytes of these places, for which it has so much room, and of their float32
    values, of which it has room for so many."""
    count = torch.tensor([len(values) // 4], dtype=torch.int32, device=values.device).view(torch.uint8)
    behind = [values.new_zeros(room - len(places)), values.new_zeros(4 * most - len(values))]
    return torch.cat([count, places, behind[0], values, behind[1]])


def first_or_largest(body: Any, values: Tensor, most: int) -> Tensor | None:
    """Return which of these values are sent where at most so many may be: the first, or the largest where there is NaN,
    which must be sent; None means all."""
    if len(values) <= most:
        return None
    if values.isnan().any():
        kept: Tensor = body.largest(values, most)
        return kept
    return torch.arange(most, device=values.device)


@composed
def average_places(
    body: Any,
    total: Tensor,
    rows: Tensor,
    lengths: Sequence[int],
    most: Sequence[int],
    widths: Sequence[int],
    counted: bool,
    left_out: float,
) -> None:
    """Write into `total` the means of tensors of these lengths, one behind another, from the messages of all workers, a
    row each: the values of so many places of each tensor, or of at most so many (`counted`), added up in the order of
    rows; `left_out` elsewhere."""
    sizes = [part_bytes(count, width, counted) for count, width in zip(most, widths, strict=True)]
    columns = zip(total.split(list(lengths)), rows.split(sizes, dim=1), most, widths, strict=True)
    for mean, parts, room, width in columns:
        entries = [_read(body, part, room, width, counted) for part in parts]
        mean.copy_(body.mean_of_sparse([p for p, _ in entries], [v for _, v in entries], mean.numel(), left_out))


def part_bytes(count: int, width: int, counted: bool = False) -> int:
    """Return how many bytes so many places of so many bits take, with their values."""
    return 4 * counted - (-count * width // 8) + 4 * count


def _read(body: Any, part: Tensor, room: int, width: int, counted: bool) -> tuple[Tensor, Tensor]:
    count = room
    if counted:
        count, part = max(0, min(int(part[:4].clone().view(torch.int32)), room)), part[4:]
    places, values = part.tensor_split([-(-room * width // 8)])
    return body.unpack_numbers(places, width, count), values[: 4 * count].clone().view(torch.float32)
