"""Blocks that share a scale, for lists of tensors on CPUs: one compiled call for all of them, or one for each thread
where they are so long that this pays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from laconic.kernels import blocks
from laconic.kernels.cpu import block_lists
from laconic.kernels.cpu.loops import _map
from laconic.kernels.cpu.whole import _NONE, _counted, _numbers, _room, _single, _spans
from laconic.kernels.lists import listed
from laconic.kernels.reference.blocks import BlockFormat


def encode_blocks(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    how: BlockFormat,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not xs.plain or (errors is not None and not errors.plain):
        return blocks.encode_blocks(_single(), xs, errors, how, keys, shares)
    starts, size = _starts(xs.lengths, how)
    message = torch.empty(size, dtype=torch.uint8)
    places, lengths = xs.table.numpy()
    memory = _NONE if errors is None else errors.table.numpy()[0]
    drawn = np.array(keys if how.stochastic else [0] * len(xs), np.uint64)
    given = (places, memory, lengths, starts, how.block, *block_lists.shape_of(how), drawn, _counted(shares, len(xs)))
    _map(lambda span: block_lists.encode_blocks(*given, message.numpy(), *span), _spans(xs.lengths))
    return message


def mean_of_blocks(
    rows: Tensor,
    lengths: Sequence[int],
    how: BlockFormat,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> Sequence[Tensor]:
    means = _room(lengths, out)
    if not means.plain:
        return blocks.mean_of_blocks(_single(), rows, lengths, how, out, shares)
    places, room = means.table.numpy()
    given = (
        places,
        room,
        _starts(lengths, how)[0],
        how.block,
        *block_lists.shape_of(how),
        _counted(shares, len(means)),
    )
    payloads = rows.contiguous().numpy()
    _map(lambda span: block_lists.mean_of_blocks(payloads, *given, *span), _spans(means.lengths))
    return means


def _starts(lengths: Sequence[int], how: BlockFormat) -> tuple[np.ndarray, int]:
    """Return where each tensor's part of a message begins, and the message's length."""
    *starts, size = accumulate(map(how.message_bytes, lengths), initial=0)
    return _numbers(starts), size
