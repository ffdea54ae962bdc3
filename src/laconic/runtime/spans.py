"""Spans: the values of a message that every tier treats alike, and how they are cut into shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laconic.values.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Span:
    """Values of a message that lie one behind another and are treated alike by each of its tiers.

    A shard is one of `size` equal ranges of them: of tensors that a tier compresses it holds pieces, `weight[100:250]`
    for example, and the last shard is shorter; of values that no tier compresses it is padded.
    """

    numel: int
    compressed: tuple[bool, ...]  # whether each tier compresses them, inner to outer
    specs: tuple[TensorSpec, ...] = ()  # the tensors whose values they are, where an outer tier compresses them
    control: int = 0  # how many of them, the last ones, are no payload

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    def padding(self, size: int) -> int:
        """Return how many zeros make the length a multiple of `size`."""
        return -self.numel % size

    def control_share(self, size: int = 1) -> float:
        """Return the share of values that are no payload, with the padding for `size` shards."""
        padding = self.padding(size)
        return (self.control + padding) / (self.numel + padding)

    def shard(self, rank: int, size: int) -> Span:
        """Return the span that one of `size` members has, as the tiers outside of the innermost one see it."""
        each = (self.numel + self.padding(size)) // size
        begin, end = rank * each, (rank + 1) * each
        if self.specs:
            pieces = pieces_of(self.specs, begin, end)
            return Span(sum(piece.numel for piece in pieces), self.compressed[1:], pieces)
        control = end - min(max(begin, self.numel - self.control), end)
        return Span(each, self.compressed[1:], control=control)


def pieces_of(specs: Sequence[TensorSpec], begin: int, end: int) -> tuple[TensorSpec, ...]:
    """Return the pieces of tensors, joined to one vector, that lie in this range of it."""
    pieces, start = [], 0
    for spec in specs:
        first, last = max(begin - start, 0), min(end - start, spec.numel)
        if first < last:
            pieces.append(replace(spec, name=f"{spec.name}[{first}:{last}]", shape=(last - first,)))
        start += spec.numel
    return tuple(pieces)


def piece_of(name: str) -> tuple[str, int, int] | None:
    """Return the tensor and the range that the name of a piece says; None for names of other things."""
    tensor, bracket, inside = name.rpartition("[")
    first, colon, last = inside.removesuffix("]").partition(":")
    if not (bracket and colon and first.isdigit() and last.isdigit()):
        return None
    return tensor, int(first), int(last)
