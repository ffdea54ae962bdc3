"""What a step of sharded training sends, promised without running it: the messages of one module.

A module that `fully_shard` was called on gathers its weights for forward, again for backward unless they are kept, and
scatters its gradients to their owners. Bytes are those that the runtime counts once the first weights have been sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from laconic.architecture.sharded import ShardedMethod
from laconic.compression.base import Compressor
from laconic.compression.codec import Codec
from laconic.compression.optional import memory_bytes
from laconic.compression.to_owners import DenseToOwners, to_owners
from laconic.runtime.sharded.gather import gathered_as
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec

Span = Literal["all", "inside", "across"]
"""Whom a message reaches: all workers, those of one host, or those in the same place of every host."""

Meets = Literal["gather", "scatter", "reduce"]


@dataclass(frozen=True)
class Hosts:
    """Workers in hosts of equal size; `inside` is the number of workers of a host, `across` that of hosts.

    One host is all workers together, and hosts of one worker are no hosts.
    """

    inside: int
    across: int = 1

    @property
    def workers(self) -> int:
        return self.inside * self.across

    @property
    def several(self) -> bool:
        """Whether there are several hosts of several workers, so that inside and across differ."""
        return self.inside > 1 and self.across > 1

    def members(self, span: Span) -> int:
        """Return how many workers a message reaches, the sender among them."""
        return {"all": self.workers, "inside": self.inside, "across": self.across}[span]


@dataclass(frozen=True)
class Message:
    """A message of one worker to `members`, itself among them: its payload, and what is encoded and decoded for it.

    What is scattered or reduced has a part for each member, what is gathered goes to each member as a whole.
    """

    span: Span
    meets: Meets
    members: int
    payload_bytes: float
    chain: str = "none"
    encoded: int = 0
    decoded: int = 0

    @property
    def sent_bytes(self) -> float:
        """The bytes that one worker sends."""
        share = {"gather": 1.0, "scatter": 1 / self.members, "reduce": 2 / self.members}[self.meets]
        return self.payload_bytes * (self.members - 1) * share

    def leaving_bytes(self, hosts: Hosts) -> float:
        """Return the bytes that leave one host: a gather among all is a ring, which leaves a host once; what is
        scattered leaves from each of its workers."""
        if self.span == "inside" or hosts.across == 1:
            return 0.0
        if self.span == "across":
            return hosts.inside * self.sent_bytes
        outside = (hosts.workers - hosts.inside) / hosts.workers
        return self.sent_bytes if self.meets == "gather" else hosts.inside * self.payload_bytes * outside


@dataclass(frozen=True)
class ModuleTraffic:
    """The messages of one module in a step, and the bytes that a worker keeps for them beside parameters, gradients and
    optimizer: `copies` of weights, and what error memories hold."""

    forward: Message
    backward: Message | None
    gradients: tuple[Message, ...]
    copy_bytes: float = 0.0
    error_bytes: float = 0.0

    @property
    def messages(self) -> tuple[Message, ...]:
        return (self.forward, *(() if self.backward is None else (self.backward,)), *self.gradients)

    @property
    def sent_bytes(self) -> float:
        """The bytes that one worker sends."""
        return sum(message.sent_bytes for message in self.messages)

    def leaving_bytes(self, hosts: Hosts) -> float:
        """Return the bytes that leave one host."""
        return sum(message.leaving_bytes(hosts) for message in self.messages)


@lru_cache(maxsize=1024)  # blocks of a model are alike
def module_traffic(
    method: ShardedMethod, numel: int, hosts: Hosts, dtype: torch.dtype = torch.float32, replicated: bool = False
) -> ModuleTraffic:
    """Return the traffic of a module whose flat tensor has so many values, padding included.

    Where the model is `replicated`, a host holds all of it and hosts average the shards of their gradients.
    """
    owners = Hosts(hosts.inside) if replicated else hosts
    span: Span = "inside" if replicated and hosts.several else "all"
    forward, differences = _gathered(method, numel, owners, dtype, span)
    again, kept = _gathered_again(method, numel, owners, dtype, forward, differences)
    hops = tuple(_scattered(method, numel, owners, dtype, span))
    messages = [message for message, _ in hops]
    if replicated and hosts.across > 1:
        messages.append(Message("across", "reduce", hosts.across, numel // owners.workers * dtype.itemsize))
    copies = numel * dtype.itemsize if differences else kept
    return ModuleTraffic(forward, again, tuple(messages), float(copies), float(sum(held for _, held in hops)))


def _gathered(method: ShardedMethod, numel: int, owners: Hosts, dtype: torch.dtype, span: Span) -> tuple[Message, bool]:
    """Return the message that gathers weights, and whether it holds differences from a copy that all keep."""
    sentence = _sentence(method.weights)
    codec, differences = gathered_as(sentence)
    shard = TensorSpec("weights", (numel // owners.workers,), dtype)
    if not isinstance(codec, Codec) or not numel or not codec.accepts(shard):
        return Message(span, "gather", owners.workers, shard.nbytes), differences
    payload = codec.payload_bytes(shard, owners.workers)
    return Message(span, "gather", owners.workers, payload, sentence.chain, shard.numel, numel), differences


def _gathered_again(
    method: ShardedMethod, numel: int, owners: Hosts, dtype: torch.dtype, forward: Message, differences: bool
) -> tuple[Message | None, int]:
    """Return the message that gathers weights for backward, if any, and the bytes that are kept for it."""
    kept = method.reshard_after_forward
    if kept is True or kept == owners.workers:
        return (None if differences else forward), 0
    if kept <= 1 or differences:  # none are freed
        return None, 0
    return Message("inside", "gather", kept, numel // kept * dtype.itemsize), numel // kept * dtype.itemsize


def _scattered(
    method: ShardedMethod, numel: int, owners: Hosts, dtype: torch.dtype, span: Span
) -> Iterator[tuple[Message, int]]:
    """Yield the hops that bring gradients to the owners, each with the bytes that its error memory keeps."""
    hops: list[tuple[str, Span, int]] = [(method.alone, span, owners.workers)]
    if owners.several:
        hops = [(method.inside, "inside", owners.inside), (method.across, "across", owners.across)]
    for words, where, members in hops:
        sentence = _sentence(words)
        rows = TensorSpec("gradients", (members, numel // members), dtype)
        compressor: Compressor = to_owners([word.make() for word in sentence.compression])
        if isinstance(compressor, DenseToOwners) or not numel or not compressor.accepts(rows):
            yield Message(where, "scatter", members, rows.nbytes), 0
        else:
            payload = compressor.payload_bytes(rows, members)
            message = Message(where, "scatter", members, payload, sentence.chain, rows.numel, rows.numel // members)
            yield message, memory_bytes(compressor, [rows])
        numel //= members


def _sentence(words: str) -> Sentence:
    sentence = Strategy.parse(words)
    assert isinstance(sentence, Sentence)
    return sentence
