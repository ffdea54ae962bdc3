"""A vector as it is sent: pairs of index and value where they are few, all values where that is shorter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.errors import ContractError

INDEX_BYTES = 4
DENSE = -1
"""The header of a dense stream; that of a sparse one is its number of pairs."""


def delta(numel: int, value_bytes: int, index_bytes: int = INDEX_BYTES) -> float:
    """Return the number of pairs that take as many bytes as all of so many values: half of them for float32."""
    return numel * value_bytes / (index_bytes + value_bytes)


@dataclass(frozen=True, eq=False)
class Stream:
    """A flat vector: `values` at ascending `places`, zero elsewhere; or, where there would be more than `delta` pairs,
    all values and no places. A place that somebody sent stays a pair, also if its sum is zero.

    - `numel`: the length of the vector.
    - `values`: those of the places, or all of them.
    - `places`: in ascending order, or None in a dense stream.
    """

    numel: int
    values: Tensor
    places: Tensor | None

    @staticmethod
    def of(flat: Tensor) -> Stream:
        """Return the stream of a flat vector."""
        places = flat.nonzero().view(-1)
        return Stream.of_pairs(places, flat[places], flat.numel())

    @staticmethod
    def of_pairs(places: Tensor, values: Tensor, numel: int) -> Stream:
        """Return the stream of so many values of which these, in ascending order, are not zero."""
        if len(places) <= delta(numel, values.element_size()):
            return Stream(numel, values, places)
        return Stream(numel, values.new_zeros(numel).index_copy_(0, places, values), None)

    @property
    def is_dense(self) -> bool:
        return self.places is None

    @property
    def pairs(self) -> int | None:
        """How many pairs there are; None in a dense stream."""
        return None if self.places is None else len(self.places)

    def dense(self) -> Tensor:
        """Return all values."""
        if self.places is None:
            return self.values
        return self.values.new_zeros(self.numel).index_copy_(0, self.places, self.values)

    def __add__(self, other: Stream) -> Stream:
        """Return the sum: pairs are merged, or added to a dense stream. It has the same bits in either order."""
        if self.places is not None and other.places is not None:
            places, where = torch.cat([self.places, other.places]).unique(return_inverse=True)
            total = self.values.new_zeros(len(places))
            total.index_add_(0, where[: len(self.places)], self.values)
            total.index_add_(0, where[len(self.places) :], other.values)
            return Stream.of_pairs(places, total, self.numel)
        if self.places is None and other.places is None:
            return Stream(self.numel, self.values + other.values, None)
        full, few = (self, other) if self.places is None else (other, self)
        assert few.places is not None
        return Stream(self.numel, full.values.index_add(0, few.places, few.values), None)

    def slice(self, begin: int, end: int) -> Stream:
        """Return the stream of a part of the vector, with places that count from its beginning."""
        if self.places is None:
            return Stream.of(self.values[begin:end])
        first, last = torch.searchsorted(self.places, self.places.new_tensor([begin, end])).tolist()
        return Stream.of_pairs(self.places[first:last] - begin, self.values[first:last], end - begin)

    @property
    def header(self) -> int:
        """What a receiver must know before the body: how many pairs there are, or that the stream is dense."""
        return DENSE if self.places is None else len(self.places)

    def body(self) -> Tensor:
        """Return places, of 32 bits each, and values as bytes; values alone in a dense stream."""
        written = self.values.contiguous().view(torch.uint8)
        return written if self.places is None else torch.cat([self.places.to(torch.int32).view(torch.uint8), written])

    @staticmethod
    def body_bytes(header: int, numel: int, value_bytes: int) -> int:
        """Return how long the body behind such a header is."""
        return numel * value_bytes if header == DENSE else header * (INDEX_BYTES + value_bytes)

    @staticmethod
    def read(header: int, body: Tensor, numel: int, dtype: torch.dtype) -> Stream:
        """Return the stream with this header and body, both as they were received."""
        if len(body) != Stream.body_bytes(header, numel, dtype.itemsize):
            raise ContractError(
                f"{len(body)} bytes are not the body of a stream of {numel} values with header {header}"
            )
        if header == DENSE:
            return Stream(numel, body.clone().view(dtype), None)
        places, values = body.tensor_split([INDEX_BYTES * header])
        return Stream(numel, values.clone().view(dtype), places.clone().view(torch.int32).long())
