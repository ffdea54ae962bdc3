"""Sparsification: which coordinates are sent, how their places are written, and how their values are encoded."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.codec import Codec
from laconic.compression.codes import places as code
from laconic.compression.codes.places import PLACES
from laconic.compression.optional import contraction_of, spread_of
from laconic.compression.payload import pack
from laconic.compression.raw import Raw
from laconic.kernels.messages import finite
from laconic.kernels.sparse_messages import counted_part
from laconic.registry import knob
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Request


def share_of(ratio: float, numel: int) -> int:
    """Return how many of `numel` coordinates such a share is: at least one, and at most all."""
    return min(numel, max(1, math.ceil(ratio * numel - 1e-9)))


def drawn(k: int, numel: int, key: int, device: torch.device) -> Tensor:
    """Return k random places in ascending order, the same for all who hold the key."""
    order = (kernels.integers(key, 0, numel, device) << 32) | torch.arange(numel, device=device)
    return order.topk(k, largest=False, sorted=False).indices.sort().values


def sample(x: Tensor, count: int, key: int) -> Tensor:
    """Return `count` values of a flat tensor, drawn with repetition."""
    return x[kernels.integers(key, 0, count, x.device) * x.numel() >> kernels.draws.BITS]


@dataclass(frozen=True)
class PlaceSelector(Codec):
    """A codec that sends some coordinates of a tensor, with values in float32 unless a codec follows in the chain.

    `choose` returns places in ascending order: `count` of them, or at most so many where their number depends on the
    values (`varies`). Then a message begins with it, and has either the length of what it holds or, if it is `padded`,
    that of the largest number of places.
    """

    cost: ClassVar[str] = "select"

    @property
    def place_code(self) -> str:
        """How places are written, one of `PLACES`."""
        return "packed"

    @property
    def varies(self) -> bool:
        """Whether the number of places depends on the values."""
        return False

    @property
    def padded(self) -> bool:
        """Whether a message has room for `count` places, however many there are, so that its length is known."""
        return False

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return (self.varies and not self.padded) or self.place_code == "golomb"

    @abstractmethod
    def count(self, numel: int) -> int:
        """Return the number of places k; the largest one, where it depends on the values."""

    @abstractmethod
    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        """Return the selected places of a flat tensor, in ascending order."""

    def least(self, x: Tensor, error: Tensor | None, meet: Meet) -> float | Tensor | None:
        """Return the smallest magnitude of x + error that is chosen, or None if it is not known before the sum is
        made."""
        return None

    def kept(self, places: Tensor, values: Tensor, numel: int) -> Tensor | None:
        """Return which of the values at or above `least` are sent, in ascending order, or None if all of them are."""
        return None

    def places_bytes(self, k: int, numel: int) -> int:
        """Return the largest number of bytes that k places take."""
        return code.most(self.place_code, k, numel)

    def write_places(self, places: Tensor, numel: int) -> Tensor:
        """Encode places as bytes."""
        return code.write(self.place_code, places, numel)

    def read_places(self, payload: Tensor, k: int, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        """Return the k places of a payload, and the bytes behind them."""
        return code.read(self.place_code, payload, k, numel)

    @property
    def own_values(self) -> Codec:
        """The codec of its values, where none follows in the chain."""
        return Raw()

    @property
    def _alone(self) -> Selected:
        return Selected(self, self.own_values)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self._alone.encode(x, meet)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        return self._alone.decode(payload, shape, meet)

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        self._alone.add(total, payload, meet)

    def feed(self, x: Tensor, error: Tensor, meet: Meet) -> Tensor:
        return self._alone.feed(x, error, meet)

    def average(self, payload: Tensor, like: Tensor, meet: Meet) -> Generator[Request, Any, Tensor]:
        return self._alone.average(payload, like, meet)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self._alone.payload_bytes(spec, size)

    def exchange_selected(self, values: Codec, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        """Exchange a bucket with the values encoded by this codec; None where tensors are exchanged one by one."""
        return None


@dataclass(frozen=True)
class Selector(PlaceSelector):
    """A selector whose number of places is a share of the tensor's, with its places in a code of choice."""

    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates that are sent, at least one"
    )
    index: str = knob("packed", choices=PLACES, doc="places in log2 n bits, in 32, as a bitmap, as coded gaps")

    @property
    def place_code(self) -> str:
        return self.index

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def contraction(self, spec: TensorSpec) -> float | None:
        return self.count(spec.numel) / spec.numel


@dataclass(frozen=True)
class Selected(Codec):
    """A codec that joins a selector's places with its values, encoded by another codec."""

    selector: PlaceSelector
    values: Codec = field(default_factory=Raw)

    @property
    def padded(self) -> bool:
        """Whether a message has room for the selector's largest number of places; values have it in float32 alone."""
        return self.selector.padded and isinstance(self.values, Raw)

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return self.selector.ragged or (self.selector.varies and not self.padded)

    @property
    def left_out(self) -> float:  # type: ignore[override]
        return self.selector.left_out

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return self.selector.exchange_selected(self.values, bucket, meet)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self._selected_and_encoded(x.reshape(-1), meet)[0]

    def feed(self, x: Tensor, error: Tensor, meet: Meet) -> Tensor:
        """Encode x + error; only what was sent of the chosen places is subtracted from the memory."""
        if isinstance(self.values, Raw) and x.dtype == error.dtype == torch.float32:
            least = self.selector.least(x.reshape(-1), error.view(-1), meet)
            if least is not None:
                return self._feed_passing(x.reshape(-1), error.view(-1), least, meet)
        error += x
        flat = error.view(-1)
        payload, places, values = self._selected_and_encoded(flat, meet)
        flat[places] -= self.values.decode(values, places.shape, meet)
        finite(flat)
        return payload

    def _feed_passing(self, x: Tensor, error: Tensor, least: float | Tensor, meet: Meet) -> Tensor:
        """Encode in one pass over both inputs; values that pass the limit and are not sent return to the memory."""
        places, values = kernels.feed_selected(x, error, least)
        kept = self.selector.kept(places, values, x.numel())
        if kept is not None:
            error[places] = values
            places, values = places[kept], values[kept]
            error[places] -= values
        finite(error)
        return self._written(places, self.values.encode(values, meet), x.numel())

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        dense = torch.full(shape, self.left_out, device=payload.device)
        self.add(dense, payload, meet)
        return dense

    def add(self, total: Tensor, payload: Tensor, meet: Meet) -> None:
        places, values = self.read(payload, total.numel(), meet)
        total.view(-1).index_add_(0, places, values)

    def read(self, payload: Tensor, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        """Return the places and values of a message."""
        return self._read(payload, self._counts([payload], numel)[0], numel, meet)

    def average(self, payload: Tensor, like: Tensor, meet: Meet) -> Generator[Request, Any, Tensor]:
        rows = yield (meet.gather_ragged(payload) if self.ragged else meet.gather(payload))
        counts, numel = self._counts(rows, like.numel()), like.numel()
        entries = [self._read(row, k, numel, meet) for row, k in zip(rows, counts, strict=True)]
        mean = kernels.mean_of_sparse([p for p, _ in entries], [v for _, v in entries], numel, self.left_out)
        return mean.view(like.shape)

    def _counts(self, payloads: Sequence[Tensor], numel: int) -> list[int]:
        """Return how many places each message has, copied from the device at once."""
        if not self.selector.varies:
            return [self.selector.count(numel)] * len(payloads)
        heads: list[int] = torch.cat([payload[:4] for payload in payloads]).view(torch.int32).tolist()
        return heads

    def _read(self, payload: Tensor, k: int, numel: int, meet: Meet) -> tuple[Tensor, Tensor]:
        if self.padded:
            payload = self._unpadded(payload, k, numel)
        places, written = self.selector.read_places(payload[4 * self.selector.varies :], k, numel, meet)
        return places, self.values.decode(written, places.shape, meet)

    def _unpadded(self, payload: Tensor, k: int, numel: int) -> Tensor:
        """Return a message of k places without the room behind them and behind their values."""
        places = payload[: 4 + self.selector.places_bytes(k, numel)]
        return torch.cat([places, payload[len(payload) - 4 * self.selector.count(numel) :][: 4 * k]])

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        k = self.selector.count(spec.numel)
        values = self.values.payload_bytes(TensorSpec(spec.name, (k,), torch.float32), size)
        return 4 * self.selector.varies + self.selector.places_bytes(k, spec.numel) + values

    def contraction(self, spec: TensorSpec) -> float | None:
        """Return δ: the selector's times that of the values' codec."""
        outer = contraction_of(self.selector, spec)
        inner = contraction_of(self.values, TensorSpec(spec.name, (self.selector.count(spec.numel),), torch.float32))
        return None if outer is None or inner is None else outer * inner

    def spread(self, spec: TensorSpec) -> float:
        return spread_of(self.values, TensorSpec(spec.name, (self.selector.count(spec.numel),), torch.float32))

    def _selected_and_encoded(self, flat: Tensor, meet: Meet) -> tuple[Tensor, Tensor, Tensor]:
        places = self.selector.choose(flat, meet)
        values = self.values.encode(flat[places], meet)
        return self._written(places, values, flat.numel()), places, values

    def _written(self, places: Tensor, values: Tensor, numel: int) -> Tensor:
        if self.padded:
            selector, most = self.selector, self.selector.count(numel)
            written = selector.write_places(places, numel)
            return counted_part(written, values, selector.places_bytes(most, numel), most)
        head = [torch.tensor([len(places)], dtype=torch.int32, device=places.device)] if self.selector.varies else []
        return pack(*head, self.selector.write_places(places, numel), values)
