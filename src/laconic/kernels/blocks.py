"""Messages of blocks that share a scale, encoded one tensor after another as in `messages`; compiled bodies write and
read the same bytes for a list at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.fallbacks import composed
from laconic.kernels.messages import as_bytes, finite, means_of_parts, pack_codes, unpack_codes
from laconic.kernels.reference.blocks import BlockFormat, block_codes, block_values


@composed
def encode_blocks(
    body: Any,
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    how: BlockFormat,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    """Encode each v = x + error, or x where there is no memory, as codes and a scale a block.

    Where values are rounded at random each tensor has its own key; elsewhere no key is used. `error` keeps v minus the
    decoded value (or minus the tensor's share of it), where that is finite.
    """
    parts = []
    for i, x in enumerate(xs):
        v = x if errors is None else errors[i].add_(x)
        largest = body.bucket_scales(v, how.block_of(v.numel()), "max")
        codes, scales = block_codes(v, largest, how, keys[i] if how.stochastic else 0)
        parts += [pack_codes(codes, how.width), as_bytes(scales) if scales.is_floating_point() else scales]
        if errors is not None:
            values = block_values(codes, scales, how)
            finite(v.sub_(values if shares is None else values * shares[i]))
    return torch.cat(parts)


@composed
def mean_of_blocks(
    body: Any,
    rows: Tensor,
    lengths: Sequence[int],
    how: BlockFormat,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    """Return the means of tensors of these lengths from such messages, a row each, added up in the order of rows.

    The mean of one message is the values it holds. Each is multiplied by its share, and written to `out`, if given.
    """

    def values(part: Tensor, n: int) -> Tensor:
        packed, scales = part.tensor_split([how.code_bytes(n)])
        codes = unpack_codes(packed, how.width, n)
        return block_values(codes, scales.clone().view(torch.float32) if how.scale_bytes == 4 else scales, how)

    return means_of_parts(rows, lengths, [how.message_bytes(n) for n in lengths], values, out, shares)
