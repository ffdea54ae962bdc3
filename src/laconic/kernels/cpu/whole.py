"""Bodies for lists of tensors on CPUs: one compiled call for all of them, or one tensor after another where they are so
long that each is divided among threads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.kernels import messages, sparse_messages
from laconic.kernels.cpu import lists, sparse_lists
from laconic.kernels.cpu.loops import in_parts
from laconic.kernels.lists import TensorList, listed

_NONE = np.empty(0, np.int64)


def _single() -> Any:
    """Return the bodies for single tensors."""
    return sys.modules["laconic.kernels.cpu"]


def _one_call(*tensors: TensorList) -> bool:
    return all(xs.plain for xs in tensors) and len(in_parts(sum(tensors[0].lengths), 1)) <= 1


def _spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return each thread's first and last tensor (exclusive): those that begin in its part of all elements."""
    begins = list(accumulate(lengths, initial=0))
    cuts = np.searchsorted(begins[:-1], [last for _, last in in_parts(begins[-1], 1)])
    return [(first, last) for first, last in zip([0, *cuts], cuts, strict=False) if first < last]


def encode_signs(xs: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    xs, errors = listed(xs), listed(errors)
    if not _one_call(xs, errors):
        return messages.encode_signs(_single(), xs, errors)
    message = torch.empty(sum(-(-n // 8) + 4 for n in xs.lengths), dtype=torch.uint8)
    places, lengths = xs.table.numpy()
    lists.encode_signs(places, errors.table.numpy()[0], lengths, message.numpy())
    return message


def mean_of_signs(rows: Tensor, lengths: Sequence[int], out: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
    means = _room(lengths, out)
    if not _one_call(means):
        return messages.mean_of_signs(_single(), rows, lengths, out)
    lists.mean_of_signs(rows.contiguous().numpy(), *means.table.numpy())
    return means


def encode_levels(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    bucket: int,
    steps: int,
    norm: str,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not _one_call(*(xs,) if errors is None else (xs, errors)):
        return messages.encode_levels(_single(), xs, errors, bucket, steps, norm, keys, shares)
    each = 8 // messages.WIDTHS[steps]
    sizes = [-(-n // each) + 4 * -(-n // bucket) for n in xs.lengths]
    message = torch.empty(sum(sizes), dtype=torch.uint8)
    places, lengths = xs.table.numpy()
    memory = _NONE if errors is None else errors.table.numpy()[0]
    how = (bucket, steps, each, norm == "l2", np.array(keys, np.uint64), _counted(shares, len(xs)))
    lists.encode_levels(places, memory, lengths, *how, message.numpy())
    return message


def mean_of_levels(
    rows: Tensor,
    lengths: Sequence[int],
    bucket: int,
    steps: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> Sequence[Tensor]:
    means = _room(lengths, out)
    if not _one_call(means):
        return messages.mean_of_levels(_single(), rows, lengths, bucket, steps, out, shares)
    how = (bucket, steps, 8 // messages.WIDTHS[steps], _counted(shares, len(lengths)))
    places, given = means.table.numpy()
    lists.mean_of_levels(rows.contiguous().numpy(), places, given, *how)
    return means


def _room(lengths: Sequence[int], out: Sequence[Tensor] | None) -> TensorList:
    return TensorList(torch.empty(sum(lengths)).split(list(lengths))) if out is None else listed(out)


def _counted(shares: Sequence[float] | None, count: int) -> Any:
    return np.ones(count, np.float32) if shares is None else np.array(shares, np.float32)


def encode_largest(
    xs: Sequence[Tensor], errors: Sequence[Tensor] | None, counts: Sequence[int], widths: Sequence[int]
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not _one_call(*(xs,) if errors is None else (xs, errors)):
        return sparse_messages.encode_largest(_single(), xs, errors, counts, widths)
    message = torch.empty(sum(map(sparse_messages.part_bytes, counts, widths)), dtype=torch.uint8)
    places, lengths = xs.table.numpy()
    memory = _NONE if errors is None else errors.table.numpy()[0]
    sparse_lists.encode_largest(places, memory, lengths, _numbers(counts), _numbers(widths), message.numpy())
    return message


def encode_sampled(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    samples: Sequence[tuple[int, int]],
    most: Sequence[int],
    widths: Sequence[int],
    keys: Sequence[int],
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not _one_call(*(xs,) if errors is None else (xs, errors)):
        return sparse_messages.encode_sampled(_single(), xs, errors, samples, most, widths, keys)
    length = sum(sparse_messages.part_bytes(count, width, True) for count, width in zip(most, widths, strict=True))
    message = torch.zeros(length, dtype=torch.uint8)
    places, lengths = xs.table.numpy()
    memory = _NONE if errors is None else errors.table.numpy()[0]
    how = (_numbers(samples), _numbers(most), _numbers(widths), np.array(keys, np.uint64))
    sparse_lists.encode_sampled(places, memory, lengths, *how, message.numpy())
    return message


def average_places(
    total: Tensor,
    rows: Tensor,
    lengths: Sequence[int],
    most: Sequence[int],
    widths: Sequence[int],
    counted: bool,
    left_out: float,
) -> None:
    given = (_numbers(lengths), _numbers(most), _numbers(widths), counted, np.float32(left_out))
    sparse_lists.average_places(total.numpy(), rows.contiguous().numpy(), *given)


def _numbers(given: Any) -> Any:
    return np.array(given, np.int64)
