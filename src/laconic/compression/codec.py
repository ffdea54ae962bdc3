"""Messages that one worker makes alone and anybody can read: gathered and averaged, or in two hops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.kernels.messages import finite
from laconic.worker import Meet, Meets


class Codec(Compressor):
    """From a float32 tensor to bytes and back. Everybody gets everybody's bytes, decodes them and takes the mean.

    What both sides must draw alike comes from the meeting's shared keys. `ragged` says that the length depends on the
    values, too.
    """

    ragged: ClassVar[bool] = False
    left_out: ClassVar[float] = 0.0
    """What stands where nobody said anything. -0.0 changes no sum, and can be told from a zero that was said."""

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def unit(self) -> int:
        """Parts of so many elements can be encoded apart from each other."""
        return 1

    def part(self, shape: torch.Size, size: int) -> torch.Size:
        """The shape of what one of `size` owners has of such a tensor: the same for all, the last filled up."""
        return torch.Size([-(-shape.numel() // (size * self.unit)) * self.unit])

    def split(self, x: Tensor, size: int) -> Tensor:
        """The parts of all owners, stacked."""
        part = self.part(x.shape, size)
        return torch.nn.functional.pad(x.reshape(-1), (0, size * part.numel() - x.numel())).view(size, *part)

    def join(self, parts: Tensor, shape: torch.Size) -> Tensor:
        """What was split."""
        return parts.reshape(-1)[: shape.numel()].view(shape)

    @property
    def lists(self) -> bool:
        """Whether many tensors can be fed and averaged at once: `feed_all`, `means`."""
        return False

    def feed_all(self, xs: Sequence[Tensor], errors: Sequence[Tensor], meets: Sequence[Meet]) -> Tensor:
        """Encode each x + error, and leave in `error` what was not said and is finite; all flat, in one payload."""
        raise NotImplementedError

    def means(self, rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Of what such payloads, a row for each worker, say of tensors of these lengths."""
        raise NotImplementedError

    @abstractmethod
    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        """The bytes (uint8) for a float32 tensor, which stays as it is."""

    @abstractmethod
    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        """What such bytes say, in float32."""

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        """Decode into a sum."""
        total += self.decode(payload, total.shape, meet)

    def feed(self, x: Tensor, error: Tensor, meet: Meet) -> Tensor:
        """Encode x + error, and leave in `error` what was not said and is finite."""
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

    def average(self, payload: Tensor, like: Tensor, meet: Meet) -> Generator[Any, Any, Tensor]:
        """Of what everybody's payloads say, added up in the order of ranks."""
        rows = yield (meet.gather_ragged(payload) if self.ragged else meet.gather(payload))
        return self.mean(rows, like, meet)

    def mean(self, rows: Sequence[Tensor] | Tensor, like: Tensor, meet: Meet) -> Tensor:
        """The same of payloads that are there."""
        if self.lists and isinstance(rows, Tensor):
            return self.means(rows, [like.numel()])[0].view(like.shape)
        total = torch.full_like(like, self.left_out)
        for row in rows:
            self.add(total, row, meet)
        return total.div_(len(rows))
