"""The tensors of one message as a compressor of whole buckets sees them: one flat vector, and its parts.

Most compressors exchange one tensor at a time. Those whose arithmetic is the same for all elements, or that have hot
loops over lists of tensors, implement `WholeBucket` of `laconic.compression.optional` and exchange a bucket in as many
operations as another compressor needs for one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from laconic.kernels.lists import TensorList
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Gather, Meet, Reduce, Request, Scatter

Entry = TypeVar("Entry")
BucketExchange = Generator[Request, Any, Tensor | None]
"""The exchange of a bucket: it leaves the common result in `TensorBucket.flat`, and returns this worker's own
contribution, flat, or None where that cannot be told apart from the result."""


@dataclass(eq=False)
class TensorBucket:
    """Tensors of one type that lie one behind another in `flat`, and the compressor's memory of them.

    An entry of the memory that has as many elements as its tensor is a flat vector of all tensors in `vectors`; the
    entries of other shapes are lists of tensors in `lists`, packed if all have one type. Both are changed in place.
    """

    specs: tuple[TensorSpec, ...]
    flat: Tensor
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    lists: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(spec.numel for spec in self.specs)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(spec.shape for spec in self.specs)

    @cached_property
    def tensors(self) -> TensorList:
        """Each tensor as a flat part of `flat`."""
        return self.parts(self.flat)

    @cached_property
    def _parts(self) -> dict[str, TensorList]:
        return {}

    def parts(self, vector: Tensor) -> TensorList:
        """Return the parts of a flat vector that belong to each tensor."""
        return TensorList(vector.split(self.lengths))

    def memory(self, name: str) -> TensorList:
        """Return each tensor's part of a flat memory."""
        if name not in self._parts:
            self._parts[name] = self.parts(self.vectors[name])
        return self._parts[name]

    @cached_property
    def _matrices(self) -> dict[int, TensorList]:
        return {}

    def matrices(self, vector: Tensor) -> TensorList:
        """Return the parts of a flat vector, each as a matrix: a tensor's first dimension by all others."""
        found = self._matrices.get(vector.data_ptr())
        if found is None:
            parts = zip(self.parts(vector), self.specs, strict=True)
            found = self._matrices[vector.data_ptr()] = TensorList(x.view(spec.shape[0], -1) for x, spec in parts)
        return found

    def scaled(self, vector: Tensor, factors: Sequence[float]) -> Tensor:
        """Return a flat vector with each tensor's part multiplied by its own factor."""
        if len(set(factors)) == 1:
            return vector * factors[0]
        scaled = vector.clone()
        torch._foreach_mul_(list(self.parts(scaled)), list(factors))
        return scaled

    def fact(self, name: str, find: Callable[[], Any]) -> Any:
        """Return something that depends on the tensors' specifications alone, found once."""
        if name not in self.facts:
            self.facts[name] = find()
        return self.facts[name]

    def placed(self, name: str, find: Callable[[], Any]) -> Any:
        """Return something that depends on where the tensors lie as well, found once for these tensors."""
        if name not in self._places:
            self._places[name] = find()
        return self._places[name]

    @cached_property
    def _places(self) -> dict[str, Any]:
        return {}

    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """Return memory for so many elements, the same in every step."""
        found = self.buffers.get(name)
        if found is None or found.numel() != numel or found.dtype != dtype:
            found = self.buffers[name] = torch.empty(numel, dtype=dtype, device=self.flat.device)
        return found

    def at(self, flat: Tensor, vectors: Mapping[str, Tensor] | None = None) -> TensorBucket:
        """Return a bucket of the same kind of tensors that lie elsewhere, with the same memory or these vectors."""
        vectors = self.vectors if vectors is None else vectors
        return TensorBucket(self.specs, flat, vectors, self.lists, self.buffers, self.facts)

    @cached_property
    def inner(self) -> TensorBucket:
        """The same bucket with the memory of the compressor inside a wrapper."""
        return TensorBucket(
            self.specs,
            self.flat,
            inner_entries(self.vectors),
            inner_entries(self.lists),
            self.buffers,
            self.facts,
        )


def inner_entries(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of a wrapper's memory that belong to the compressor inside it, under their own names."""
    return {name.removeprefix("inner."): entry for name, entry in entries.items() if name.startswith("inner.")}


_KEYS = 1 << 16  # the most keys of one tier's recorded exchanges


class StepDependent(Exception):
    """Raised where an exchange that is being recorded for all steps asks for what differs between them."""


@dataclass(frozen=True)
class Moment:
    """What differs from step to step: its number, the learning rate, and each tensor's own meeting."""

    step: int
    rate: float
    meet_of: Callable[[TensorSpec], Meet]


class RecordedKeys(Sequence[int]):
    """The keys of an exchange that is recorded for all steps: a table on the device, which is renewed before each."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: Any) -> Any:
        raise StepDependent("a draw's key differs between steps")


class KeyTables:
    """The keys that recorded exchanges on this device need: those of all buckets in one memory, which is renewed once a
    step."""

    def __init__(self, device: torch.device) -> None:
        self._keys = torch.empty(_KEYS, dtype=torch.int64, device=device)
        self._tables: dict[tuple[str, int, tuple[TensorSpec, ...]], Tensor] = {}
        self._used, self._step = 0, -1

    def table(self, what: str, times: int, specs: tuple[TensorSpec, ...]) -> Tensor:
        """Return the table for draws of this kind, of each tensor so many times."""
        found = self._tables.get((what, times, specs))
        if found is None:
            begin, self._used = self._used, self._used + times * len(specs)
            if self._used > _KEYS:
                raise StepDependent(f"more than {_KEYS} keys of draws differ between steps")
            found = self._tables[what, times, specs] = self._keys[begin : self._used]
            self._step = -1
        return found

    def renew(self, moment: Moment) -> None:
        """Write the keys of a step, without waiting for the copy."""
        if moment.step == self._step or not self._used:
            return
        self._step = moment.step
        keys: list[int] = []
        for what, times, specs in self._tables:
            keys += [moment.meet_of(spec).key(what) for spec in specs] * times
        signed = [key - (key >> 63 << 64) for key in keys]
        self._keys[: self._used].copy_(torch.tensor(signed, pin_memory=self._keys.is_cuda), non_blocking=True)


def draw_keys(meets: Sequence[Meet], what: str = "") -> Sequence[int]:
    """Return the key of each tensor's own draws, in the step of these meetings or, while an exchange is recorded, in
    every step."""
    if isinstance(meets, _Meets) and meets.meet.moment is None and meets.meet.tables is not None:
        return RecordedKeys(meets.meet.tables.table(what, meets.times, meets.meet.specs))
    return [meet.key(what) for meet in meets]


@dataclass(frozen=True)
class BucketMeet:
    """How the payloads of a bucket meet: what `Meet` is for one tensor."""

    rank: int
    size: int
    own: bool  # whether this worker's own contribution is wanted beside the common result
    specs: tuple[TensorSpec, ...]
    moment: Moment | None  # None while the exchange is recorded for all steps
    tables: KeyTables | None = None  # where keys of draws are expected while it is recorded
    alike: Callable[[Tensor, Tensor, Callable[[], Any]], None] | None = None  # how members share what all compute

    @property
    def step(self) -> int:
        return self._now.step

    @property
    def rate(self) -> float:
        return self._now.rate

    @property
    def _now(self) -> Moment:
        if self.moment is None:
            raise StepDependent("the exchange depends on the step")
        return self.moment

    def mean(self, tensor: Tensor) -> Reduce:
        return Reduce(tensor, "mean")

    def sum(self, tensor: Tensor) -> Reduce:
        return Reduce(tensor, "sum")

    def gather(self, tensor: Tensor) -> Gather:
        return Gather(tensor)

    def scatter(self, tensor: Tensor) -> Scatter:
        return Scatter(tensor)

    def common(self, answer: Tensor, into: Tensor, compute: Callable[[], Any]) -> None:
        """Let `compute` write to `into` what follows from an answer alone, so that all workers compute the same."""
        if self.alike is None or self.moment is None:
            compute()
        else:
            self.alike(answer, into, compute)

    def each(self, times: int = 1) -> Sequence[Meet]:
        """Return the meeting of each tensor, whose keys draws depend on; they are made when they are asked for. All are
        repeated so many times."""
        return _Meets(self, times)


@dataclass
class _Meets(Sequence[Meet]):
    meet: BucketMeet
    times: int

    @cached_property
    def _made(self) -> list[Meet]:
        return [self.meet._now.meet_of(spec) for spec in self.meet.specs]

    def __len__(self) -> int:
        return self.times * len(self.meet.specs)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice) or not -len(self) <= i < len(self):
            return (self._made * self.times)[i]
        return self._made[i % len(self._made)]


def is_changed_below(compressor: Any, method: str, whole: str) -> bool:
    """Return whether a subclass changes how one tensor is handled (`method`) and inherits how many are (`whole`), which
    then does something else."""
    return _rank_of(type(compressor), method) < _rank_of(type(compressor), whole)


_ranks: dict[tuple[type, str], int] = {}


def _rank_of(kind: type, method: str) -> int:
    """Return how far up its ancestry a class gets a method from."""
    if (kind, method) not in _ranks:
        _ranks[kind, method] = next(rank for rank, above in enumerate(kind.__mro__) if method in vars(above))
    return _ranks[kind, method]
