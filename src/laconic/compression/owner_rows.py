"""A matrix with a row for each owner of a shard: every row becomes a message, and owners average those that arrive."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.block_codec import BlockCodec
from laconic.compression.bucket import draw_keys
from laconic.compression.codec import Codec
from laconic.compression.optional import spread_of
from laconic.kernels import BlockFormat
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets, Request


@dataclass(frozen=True)
class ToOwners(Compressor):
    """Encode a matrix with a row for each owner row by row; the result is the mean of all workers' messages for one's
    own row. `own` tells whether somebody asks for what was sent, as a memory does."""

    inner: Codec
    own: bool = False

    @property
    def meets(self) -> Meets:
        return "scatter"

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.inner, spec)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        payloads = encoded(self.inner, x, meet)
        sent = decoded(self.inner, payloads, torch.empty_like(x, dtype=wide(x)), meet) if self.own else None
        mean = yield from self.scattered(payloads, x, meet)
        return Outcome(mean, state, sent)

    def scattered(self, payloads: Tensor, like: Tensor, meet: Meet) -> Generator[Request, Any, Tensor]:
        """Send each owner its payload, and return the mean of those that arrive, in the shape of a row, in float32
        where the matrix has 16 bits."""
        received = yield meet.scatter(payloads)
        row = torch.empty(like.shape[1:], dtype=torch.float32, device=like.device)
        return self.inner.mean(received, row, meet).to(wide(like))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        row = TensorSpec(spec.name, (-(-spec.numel // size),), torch.float32)
        return size * self.inner.payload_bytes(row, size)


def encoded(codec: Codec, rows: Tensor, meet: Meet) -> Tensor:
    """Return the payloads of the rows of a matrix, which may have 16 bits, stacked."""
    if (layout := row_layout(codec)) is not None and rows.ndim == 2:
        key = draw_keys([meet])[0] if layout.stochastic else 0
        return kernels.encode_block_rows(rows, layout, key)
    rows = rows.float().contiguous()
    if codec.encodes_lists:
        return codec.feed_all(list(rows.unbind()), None, [meet] * len(rows)).view(len(rows), -1)
    return torch.stack([codec.encode(row, meet) for row in rows])


def decoded(codec: Codec, payloads: Tensor, out: Tensor, meet: Meet) -> Tensor:
    """Write the matrix whose rows these payloads encode to `out`, which may have 16 bits, and return that."""
    if (layout := row_layout(codec)) is not None and out.ndim == 2:
        kernels.decode_block_rows(payloads, out, layout)
        return out
    if codec.encodes_lists:
        rows = codec.means(payloads.reshape(1, -1), [out[0].numel()] * len(out))
        return out.copy_(torch.cat(rows).view(out.shape))
    return out.copy_(torch.stack([codec.decode(payload, out[0].shape, meet) for payload in payloads]))


def row_layout(codec: Codec) -> BlockFormat | None:
    """Return how hot loops write a codec's messages of the rows of a matrix, or None where it has no such loops."""
    return codec.row_layout if isinstance(codec, BlockCodec) else None


def wide(x: Tensor) -> torch.dtype:
    """Return the type in which values of a tensor are added up: float32 where it has 16 bits."""
    return torch.promote_types(x.dtype, torch.float32)
