"""Codecs: messages that one worker encodes alone and any other can decode, gathered and averaged or exchanged in two
hops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, is_changed_below
from laconic.kernels.lists import TensorList
from laconic.kernels.messages import finite
from laconic.worker import Meet, Meets, Request


class Codec(Compressor):
    """A compressor that encodes a float32 tensor as bytes; every worker receives all payloads and averages them.

    Random numbers that sender and receivers must both know are drawn from the shared keys of the meeting. `ragged`
    means that the length of a payload depends on the values.
    """

    ragged: ClassVar[bool] = False
    left_out: ClassVar[float] = 0.0
    """The value of coordinates that no worker sent: adding -0.0 changes no sum, and it can be distinguished from a zero
    that was sent."""

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def unit(self) -> int:
        """The number of elements of the smallest part that can be encoded separately from the rest."""
        return 1

    def part(self, shape: torch.Size, size: int) -> torch.Size:
        """Return the shape of the part of such a tensor that one of `size` owners has; it is the same for all, the last
        is padded."""
        return torch.Size([-(-shape.numel() // (size * self.unit)) * self.unit])

    def split(self, x: Tensor, size: int) -> Tensor:
        """Return the parts of all owners, stacked."""
        part = self.part(x.shape, size)
        return torch.nn.functional.pad(x.reshape(-1), (0, size * part.numel() - x.numel())).view(size, *part)

    def filled(self, part: Tensor, real: int) -> Tensor:
        """Return an owner's part, of which the first `real` values are the tensor's own, with such padding behind them
        that they are encoded as without it: with zeros, unless a code averages the values of a part."""
        return part

    def join(self, parts: Tensor, shape: torch.Size) -> Tensor:
        """Return the tensor of this shape whose parts these are; the inverse of `split`."""
        return parts.reshape(-1)[: shape.numel()].view(shape)

    @property
    def lists(self) -> bool:
        """Whether many tensors can be encoded and averaged at once, by `feed_all` and `means`, or by `feed_bucket`."""
        return False

    @property
    def encodes_lists(self) -> bool:
        """Whether `feed_all` writes for many tensors what `encode` writes for each."""
        return self.lists and not is_changed_below(self, "encode", "feed_all")

    def feed_all(
        self,
        xs: Sequence[Tensor],
        errors: Sequence[Tensor] | None,
        meets: Sequence[Meet],
        shares: Sequence[float] | None = None,
    ) -> Tensor:
        """Encode each x + error, all flat, into one payload, and leave in `error` the part that was not encoded and is
        finite; without errors, encode each x.

        With shares, an error is left what the tensor's share of the decoded value leaves: error feedback asks for it
        around a codec whose variance is above 1.
        """
        raise NotImplementedError

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """Return the means over workers of tensors of these lengths, from such payloads, a row for each worker; each is
        multiplied by its share, and written to `out`, where they are given."""
        raise NotImplementedError

    def of_shapes(self, shapes: Sequence[tuple[int, ...]]) -> Codec:
        """Return the codec for lists of flat tensors that had these shapes: itself, unless `feed_all` and `means` must
        know them."""
        return self

    @abstractmethod
    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        """Return the payload (uint8) of a float32 tensor, which is not modified."""

    @abstractmethod
    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        """Return the float32 tensor that a payload encodes."""

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        """Decode a payload and add it to `total`."""
        total += self.decode(payload, total.shape, meet)

    def feed(self, x: Tensor, error: Tensor, meet: Meet) -> Tensor:
        """Encode x + error, and leave in `error` the part that was not encoded and is finite."""
        if self.lists and error.is_contiguous():
            return self.feed_all([x.reshape(-1)], [error.view(-1)], [meet])
        error += x
        payload = self.encode(error, meet)
        finite(error.sub_(self.decode(payload, error.shape, meet)))
        return payload

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        single = x.float()
        payload = self.encode(single, meet)
        mean = yield from self.average(payload, single, meet)
        return Outcome(mean.to(x.dtype), state, sent=self.decode(payload, x.shape, meet).to(x.dtype))

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return self.feed_bucket(bucket, None, meet) if self.feeds(bucket) else None

    def feeds(self, bucket: TensorBucket) -> bool:
        """Return whether the tensors of a bucket are encoded by `feed_all` and averaged by `means`."""
        changed = is_changed_below(self, "average", "exchange_bucket")
        return self.encodes_lists and not changed and self.meets == "gather" and bucket.flat.dtype == torch.float32

    def feed_bucket(
        self,
        bucket: TensorBucket,
        errors: TensorList | None,
        meet: BucketMeet,
        shares: Sequence[float] | None = None,
    ) -> BucketExchange:
        """Encode each x + error of a bucket, or x where there are no errors, leave in `error` the part that was not
        encoded and is finite, and exchange the payload as `exchange_bucket` does. Shares are those of `feed_all`."""
        codec = self.of_shapes(bucket.shapes)
        payload = codec.feed_all(bucket.tensors, errors, meet.each(), shares)
        own = torch.cat(codec.means(payload[None], bucket.lengths, shares=shares)) if meet.own else None
        rows = yield meet.gather(payload)
        meet.common(rows, bucket.flat, lambda: codec.means(rows, bucket.lengths, bucket.tensors, shares))
        return own

    def average(self, payload: Tensor, like: Tensor, meet: Meet) -> Generator[Request, Any, Tensor]:
        """Gather the payloads of all workers and return the mean of their decoded tensors, added up in the order of
        ranks."""
        rows = yield (meet.gather_ragged(payload) if self.ragged else meet.gather(payload))
        return self.mean(rows, like, meet)

    def mean(self, rows: Sequence[Tensor] | Tensor, like: Tensor, meet: Meet) -> Tensor:
        """Return the mean of the tensors that these payloads encode, added up in their order."""
        if self.lists and isinstance(rows, Tensor):
            return self.means(rows, [like.numel()])[0].view(like.shape)
        total = torch.full_like(like, self.left_out)
        for row in rows:
            self.add(total, row, meet)
        return total.div_(len(rows))
