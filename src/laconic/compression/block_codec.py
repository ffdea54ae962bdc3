"""Codecs of blocks that share a scale, whose hot loops take lists of tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.bucket import draw_keys
from laconic.compression.codec import Codec
from laconic.kernels import BlockFormat
from laconic.worker import Meet


class BlockCodec(Codec):
    """A codec whose payload is a code for each value, then a scale for each block.

    Where `layout` says how both are written, hot loops encode and average lists of tensors. Formats that no hot loop
    has are encoded and decoded by `encode_apart` and `decode_apart`.
    """

    @property
    @abstractmethod
    def layout(self) -> BlockFormat | None:
        """How codes and scales are written, or None where no hot loop writes them."""

    @property
    def lists(self) -> bool:
        return self.layout is not None

    @property
    def row_layout(self) -> BlockFormat | None:
        """How hot loops write the rows of a matrix, or None where a subclass writes its messages in a way of its
        own."""
        own = (type(self).feed_all, type(self).means) == (BlockCodec.feed_all, BlockCodec.means)
        return self.layout if own and self.encodes_lists else None

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        assert self.layout is not None
        keys = draw_keys(meets) if self.layout.stochastic else []
        return kernels.encode_blocks(xs, errors, self.layout, keys, shares)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        assert self.layout is not None
        return kernels.mean_of_blocks(rows, lengths, self.layout, out, shares)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self.encode_apart(x, meet) if self.layout is None else self.feed_all([x.reshape(-1)], None, [meet])

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        if self.layout is None:
            return self.decode_apart(payload, shape)
        return self.means(payload.view(1, -1), [shape.numel()])[0].view(shape)

    def encode_apart(self, x: Tensor, meet: Meet) -> Tensor:
        """Return the payload of a tensor in a format without `layout`."""
        raise NotImplementedError

    def decode_apart(self, payload: Tensor, shape: torch.Size) -> Tensor:
        """Return the tensor that such a payload encodes."""
        raise NotImplementedError
