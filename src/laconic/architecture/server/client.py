"""How a worker speaks to its parameter server: push and pull, apart, over all shards at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from laconic.architecture.server.machine import Meetings
from laconic.architecture.server.sharding import Range
from laconic.architecture.server.speech import speak, spoken_by
from laconic.architecture.server.store import scalars_of
from laconic.compression.base import Compressor, State, TensorSpec
from laconic.errors import Disagreement
from laconic.worker import Field, Handle, Letter, Worker, whole


@dataclass(frozen=True, eq=False)
class Receipt:
    """What the shards said to a push, in their order."""

    fields: tuple[Mapping[str, Field], ...]


@dataclass(frozen=True, eq=False)
class Pulled:
    """What was read: a tensor per parameter, and what the shards said beside it."""

    tensors: list[Tensor]
    fields: tuple[Mapping[str, Field], ...]

    def lowest(self, name: str) -> int:
        """Of a number that every shard said."""
        return min(whole(fields, name) for fields in self.fields)


class Answers:
    """Several letters under way as one handle."""

    def __init__(self, handles: Sequence[Handle], combine: Callable[[list[Letter]], Any]) -> None:
        self._handles, self._combine = handles, combine

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def wait(self) -> Any:
        letters: list[Letter] = [handle.wait() for handle in self._handles]
        for letter in letters:
            if letter.kind == "refused":
                raise Disagreement(str(letter.fields["why"]))
        return self._combine(letters)


@dataclass(eq=False)
class Server:
    """One worker's view of all shards of one model.

    Pushes carry the version that was read last, so that the server can tell their age, and settings of the optimizer's
    groups that have changed since the last one, so that schedules on workers govern steps on servers.
    """

    worker: Worker
    groups: Sequence[Sequence[str]]  # addresses of each group's shards
    group: int
    ranges: Sequence[Range]
    specs: Sequence[TensorSpec]
    compressor: Compressor
    meetings: Meetings
    optimizer: Optimizer | None = None
    memory: dict[str, State] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    clock: int = 0  # pushes so far, by the server's count, which begins with the slowest member's
    round: int = 0  # of aggregations among all workers
    _collected_below: int = 0
    _collected: set[int] = field(default_factory=set)
    _told: dict[str, Any] = field(default_factory=dict)

    @property
    def addresses(self) -> Sequence[str]:
        """Of the shards this worker belongs to."""
        return self.groups[self.group]

    def __post_init__(self) -> None:
        self.versions = self.versions or [0] * len(self.addresses)
        self._by_shard = [[r for r in self.ranges if r.shard == k] for k in range(len(self.addresses))]

    # ------------------------------------------------------------------------------------------ for rules

    def push(
        self,
        tensors: Sequence[Tensor],
        step: int = 0,
        exact: bool = False,
        only: int | None = None,
        versions: Sequence[int] | None = None,
        settings: Mapping[str, Field] | None = None,
        **fields: Field,
    ) -> Answers:
        """Send one tensor per parameter, compressed unless it must be exact; the receipt tells when it was taken in.

        `versions` are what it was computed at, where that is not what was read last; `settings` are meant for the
        server's optimizer, as `set.GROUP.NAME`, in place of the worker's own.
        """
        changed = {**self._changed_settings(), **(settings or {})}
        versions = self.versions if versions is None else versions
        self.clock += 1
        sent = []
        for k in self._chosen(only):
            words = self._words(tensors, k, step, exact)
            letter = {"version": versions[k], "step": step, **changed, **words[0], **fields}
            sent.append(self.worker.call(self.addresses[k], Letter("push", letter, words[1]), writes=True))
        return Answers(sent, lambda letters: Receipt(tuple(letter.fields for letter in letters)))

    def tell(self, only: int | None = None, group: int | None = None, **fields: Field) -> Answers:
        """Report something; to another group's server where that coordinates."""
        addresses = self.groups[self.group if group is None else group]
        sent = [self.worker.call(addresses[k], Letter("tell", fields), writes=True) for k in self._chosen(only)]
        return Answers(sent, lambda answers: Receipt(tuple(answer.fields for answer in answers)))

    def pull(self, only: int | None = None, group: int | None = None, **fields: Field) -> Answers:
        """Read the values, as soon as the rule lets this worker."""
        chosen, addresses = self._chosen(only), self.groups[self.group if group is None else group]
        asked = [self.worker.call(addresses[k], Letter("pull", fields), writes=False) for k in chosen]

        def combine(letters: list[Letter]) -> Pulled:
            if only is not None:
                return Pulled(list(letters[0].tensors), (letters[0].fields,))
            if not any(letter.tensors for letter in letters):  # the rule had only something to say
                return Pulled([], tuple(letter.fields for letter in letters))
            for k, letter in zip(chosen, letters, strict=True):
                self.versions[k] = letter.number("version")
            return Pulled(self._joined([letter.tensors for letter in letters]), tuple(x.fields for x in letters))

        return Answers(asked, combine)

    # ------------------------------------------------------------------------------------------ for the engine

    def join(self, digest: str, values: Sequence[Tensor] | None) -> Generator[list[Handle], Any, None]:
        """Become a member; the one who has `values` gives the servers of all groups their first ones."""
        self._digest = digest
        letters = [
            self.worker.call(address, Letter("join", {"digest": digest}), writes=True) for address in self.addresses
        ]
        (welcomes,) = yield [Answers(letters, lambda answers: answers)]
        self.clock = max(welcome.number("clock") for welcome in welcomes)
        self.round = self._collected_below = max(welcome.number("round") for welcome in welcomes)
        if values is not None:
            parts = [self._flat(values, k) for k in range(len(self.addresses))]
            planted = [
                self.worker.call(address, Letter("plant", {}, part), writes=True)
                for addresses in self.groups
                for address, part in zip(addresses, parts, strict=True)
            ]
            yield [Answers(planted, lambda answers: None)]

    def move(self, group: int) -> Generator[list[Handle], Any, None]:
        """Become a member of another group."""
        if group != self.group:
            yield from self.leave()
            self.group, self.versions = group, [0] * len(self.addresses)
            yield from self.join(self._digest, None)

    def peek(self) -> Answers:
        """The values as they are, whatever the rule says."""
        asked = [self.worker.call(address, Letter("peek"), writes=False) for address in self.addresses]

        def combine(letters: list[Letter]) -> Pulled:
            self.versions = [letter.number("version") for letter in letters]
            return Pulled(self._joined([letter.tensors for letter in letters]), tuple(x.fields for x in letters))

        return Answers(asked, combine)

    def leave(self) -> Generator[list[Handle], Any, None]:
        """Say goodbye, so that nobody waits for this worker."""
        letters = [self.worker.call(address, Letter("leave"), writes=True) for address in self.addresses]
        yield [Answers(letters, lambda answers: None)]

    def aggregate(
        self, parts: Sequence[tuple[Tensor, ...]], op: str, only: int | None = None
    ) -> Generator[Handle, Any, list[Letter]]:
        """Bring a part to each shard (or to one), and collect what all members brought, combined."""
        turn, self.round = self.round, self.round + 1
        fields: dict[str, Field] = {"round": turn, "op": op, "collected": self._collected_below}
        shards = self._chosen(only)
        for k, part in zip(shards, parts, strict=True):
            self.worker.call(self.addresses[k], Letter("contribute", fields, part), writes=True)
        asked = [self.worker.call(self.addresses[k], Letter("collect", {"round": turn}), writes=False) for k in shards]
        letters: list[Letter] = yield Answers(asked, lambda answers: answers)
        self._collected.add(turn)
        while self._collected_below in self._collected:
            self._collected.remove(self._collected_below)
            self._collected_below += 1
        return letters

    # ------------------------------------------------------------------------------------------ inside

    def _chosen(self, only: int | None) -> list[int]:
        return list(range(len(self.addresses))) if only is None else [only]

    def _slices(self, tensors: Sequence[Tensor], k: int) -> list[Tensor]:
        return [tensors[r.tensor].reshape(-1)[r.start : r.stop] for r in self._by_shard[k]]

    def _flat(self, tensors: Sequence[Tensor], k: int) -> tuple[Tensor, ...]:
        """A shard's part, one new tensor per dtype."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for r, part in zip(self._by_shard[k], self._slices(tensors, k), strict=True):
            by_dtype.setdefault(self.specs[r.tensor].dtype, []).append(part.detach())
        return tuple(torch.cat(parts) if len(parts) > 1 else parts[0].clone() for parts in by_dtype.values())

    def _words(
        self, tensors: Sequence[Tensor], k: int, step: int, exact: bool
    ) -> tuple[dict[str, Field], tuple[Tensor, ...]]:
        specs = [r.spec(self.specs) for r in self._by_shard[k]]
        if exact or not any(map(self.compressor.accepts, specs)):
            return {}, self._flat(tensors, k)
        counts: list[int] = []
        words: list[Tensor] = []
        for spec, part in zip(specs, self._slices(tensors, k), strict=True):
            compressor = spoken_by(self.compressor, spec)
            if spec.name not in self.memory:
                self.memory[spec.name] = compressor.init(spec)
            meet = self.meetings(self.worker.rank, spec.name, step)
            said, outcome = speak(compressor, part.detach().clone().view(spec.shape), self.memory[spec.name], meet)
            self.memory[spec.name] = outcome.state
            counts.append(len(said))
            words += said
        return {"words": counts}, tuple(words)

    def _joined(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """From the shards' flat tensors back to one per parameter."""
        whole = [torch.empty(spec.numel, dtype=spec.dtype) for spec in self.specs]
        for ranges, flats in zip(self._by_shard, parts, strict=True):
            rest = {flat.dtype: flat for flat in flats}
            for r in ranges:
                dtype = self.specs[r.tensor].dtype
                whole[r.tensor][r.start : r.stop] = rest[dtype][: len(r)]
                rest[dtype] = rest[dtype][len(r) :]
        return [x.view(spec.shape) for x, spec in zip(whole, self.specs, strict=True)]

    def _changed_settings(self) -> dict[str, Field]:
        if self.optimizer is None:
            return {}
        now = scalars_of(self.optimizer)
        changed = {f"set.{name}": value for name, value in now.items() if self._told.get(name) != value}
        self._told = dict(now)
        return changed  # type: ignore[return-value]
