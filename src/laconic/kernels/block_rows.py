"""The rows of a matrix as messages of blocks that share a scale, a row for each owner of a shard, and an error memory
whose values are such blocks too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laconic.kernels import blocks
from laconic.kernels.fallbacks import composed
from laconic.kernels.messages import finite, written
from laconic.kernels.reference.blocks import BlockFormat


@composed
def encode_block_rows(body: Any, matrix: Tensor, how: BlockFormat, key: int) -> Tensor:
    """Return the message of each row of a matrix, stacked: what `encode_blocks` writes for it in float32.

    Where values are rounded at random all rows share the key.
    """
    rows = list(matrix.float().contiguous().unbind())
    message: Tensor = _loop(body, "encode_blocks")(rows, None, how, [key] * len(rows))
    return message.view(len(rows), -1)


@composed
def decode_block_rows(body: Any, messages: Tensor, out: Tensor, how: BlockFormat) -> None:
    """Write the values of such messages to the rows of `out`, which may have 16 bits."""
    rows = list(out.unbind())
    found = _loop(body, "mean_of_blocks")(messages.reshape(1, -1), [row.numel() for row in rows], how)
    written(list(found), rows)


@composed
def feed_short_memory(
    body: Any, matrix: Tensor, memory: Tensor, how: BlockFormat, kept: BlockFormat, blend: float
) -> tuple[Tensor, Tensor]:
    """Encode the rows of v = x + e, where the memory is the message of e, and return their messages, stacked, and the
    memory after it.

    With s what the messages say, the new memory is the message of e + blend·(v - s - e), with zero where that is not
    finite. Its blocks are those of the flat matrix and may reach over the end of a row.
    """
    means = _loop(body, "mean_of_blocks")
    before = means(memory.view(1, -1), [matrix.numel()], kept)[0].view(matrix.shape)
    wanted = matrix.float() + before
    messages = encode_block_rows(body, wanted, how, 0)
    said = torch.empty_like(wanted)
    decode_block_rows(body, messages, said, how)
    error = wanted.sub_(said)
    if blend < 1:
        error = error.sub_(before).mul_(blend).add_(before)
    return messages, _loop(body, "encode_blocks")([finite(error).view(-1)], None, kept, [0])


def _loop(body: Any, name: str) -> Any:
    """Return a loop over lists: the body's own, or the one that is composed of its bodies."""
    whole = getattr(body, name, None)
    return whole if whole is not None else lambda *given: getattr(blocks, name)(body, *given)
