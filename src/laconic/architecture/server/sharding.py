"""How a model's tensors are divided among shards: cut into ranges, balanced by bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from laconic.kernels.draws import key_of
from laconic.values.tensor_spec import TensorSpec

BLOCK = 4096
"""Elements of a hashed range: small enough to spread evenly, large enough for its entry to be cheap."""

_POINTS = 2048  # points of one server on the hash ring: its share varies by a fiftieth


@dataclass(frozen=True)
class Range:
    """Elements `start` to `stop` of one tensor, held by one shard."""

    tensor: int
    start: int
    stop: int
    shard: int

    def __len__(self) -> int:
        return self.stop - self.start

    def spec(self, specs: Sequence[TensorSpec]) -> TensorSpec:
        """Return the range's description as a tensor: the tensor's own where the range is all of it."""
        whole = specs[self.tensor]
        if len(self) == whole.numel:
            return whole
        return TensorSpec(f"{whole.name}[{self.start}:{self.stop}]", (len(self),), whole.dtype, whole.role)


def even(specs: Sequence[TensorSpec], shards: int) -> list[Range]:
    """Give each shard the same bytes, to an element: tensors are cut where a shard is full."""
    total = sum(spec.nbytes for spec in specs)
    found: list[Range] = []
    passed = 0
    for i, spec in enumerate(specs):
        cuts = [(k * total // shards - passed) // spec.dtype.itemsize for k in range(1, shards)]
        places = [0, *sorted({min(max(cut, 0), spec.numel) for cut in cuts} - {0, spec.numel}), spec.numel]
        for start, stop in pairwise(places):
            middle = passed + (start + stop) * spec.dtype.itemsize // 2
            found.append(Range(i, start, stop, min(middle * shards // max(total, 1), shards - 1)))
        passed += spec.nbytes
    return found


def whole(specs: Sequence[TensorSpec], shards: int) -> list[Range]:
    """Place whole tensors, the largest first, on the shard with the fewest bytes: for optimizers that use a tensor's
    shape."""
    loads = [0] * shards
    placed: dict[int, int] = {}
    for i in sorted(range(len(specs)), key=lambda i: -specs[i].nbytes):
        placed[i] = loads.index(min(loads))
        loads[placed[i]] += specs[i].nbytes
    return [Range(i, 0, spec.numel, placed[i]) for i, spec in enumerate(specs)]


def hashed(specs: Sequence[TensorSpec], shards: int) -> list[Range]:
    """Place blocks on a hash ring: a server that is added takes over its share of them, and no other block moves."""
    ring = sorted((key_of(f"server {shard}/{point}"), shard) for shard in range(shards) for point in range(_POINTS))
    places = [place for place, _ in ring]
    found: list[Range] = []
    for i, spec in enumerate(specs):
        for start in range(0, spec.numel, BLOCK):
            at = bisect_right(places, key_of(f"{spec.name}/{start}")) % len(ring)
            found.append(Range(i, start, min(start + BLOCK, spec.numel), ring[at][1]))
    return found
