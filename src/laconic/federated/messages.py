"""What travels between a client and the server: named vectors, tensor by tensor, each as its compressor writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from laconic.architecture.server.point_to_point import decode_all, encode_all
from laconic.compression.base import Compressor, State
from laconic.errors import ContractError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Layout, Vectors
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Field

SERVER = -1
"""The number of the server, where random numbers are drawn for its messages."""


@dataclass(frozen=True, eq=False)
class Message:
    """Encoded vectors, and the small numbers that a rule sends beside them.

    - `payloads`: for each vector, the counts of its tensors' payloads, and these.
    - `numbers`: what the rule says beside them.
    """

    payloads: Mapping[str, tuple[Mapping[str, Field], tuple[Tensor, ...]]]
    numbers: Mapping[str, float]

    @property
    def nbytes(self) -> int:
        """The bytes of the payloads; a number of a rule has eight more, which are counted as control."""
        return sum(x.nbytes for _, tensors in self.payloads.values() for x in tensors)

    @property
    def control_bytes(self) -> int:
        return 8 * len(self.numbers)


@dataclass(frozen=True)
class Wire:
    """How vectors of a model are encoded, by one compressor.

    A random draw depends on the seed, the round, the sender and the tensor, so that the same message comes out wherever
    it is made.
    """

    compressor: Compressor
    layout: Layout
    seed: int = 0

    def encode(
        self, vectors: Vectors, numbers: Mapping[str, float], sender: int, version: int, memory: Memory
    ) -> tuple[Message, Memory]:
        """Return the message of these vectors, and what the sender's compressor remembers after it, by name."""
        states = _states(memory)
        payloads = {}
        for name, vector in vectors.items():
            layout = self._named(name, vector.numel())
            meeting = partial(self._meeting, sender, version)
            tensors = layout.split(vector.clone())
            fields, payload = encode_all(self.compressor, layout.specs, tensors, states, meeting)
            payloads[name] = {**fields, "numel": vector.numel()}, payload
        kept = {f"{_PREFIX}{tensor}/{key}": x for tensor, state in states.items() for key, x in state.items()}
        return Message(payloads, dict(numbers)), kept

    def decode(self, message: Message, sender: int, version: int) -> dict[str, Tensor]:
        """Return the vectors of a message."""
        found = {}
        for name, (fields, tensors) in message.payloads.items():
            written = ActorMessage("vector", dict(fields), tensors)
            if not 0 <= (numel := written.number("numel")) <= self.layout.numel:
                raise ContractError(f"the vector {name!r} of client {sender} is longer than the model")
            layout = self._named(name, numel)
            meeting = partial(self._meeting, sender, version)
            found[name] = layout.join(decode_all(self.compressor, layout.specs, written, meeting))
        return found

    def _named(self, vector: str, numel: int) -> Layout:
        """Return the layout of a vector: each has tensors, and memories, of its own. One that is shorter than the model
        is encoded as a whole."""
        if numel != self.layout.numel:
            return Layout((TensorSpec(vector, (numel,), torch.float32),))
        return Layout(tuple(replace(spec, name=f"{vector}/{spec.name}") for spec in self.layout.specs))

    def _meeting(self, sender: int, version: int, tensor: str) -> Meeting:
        return Meeting(sender, 1, version, tensor, self.seed)


_PREFIX = "compressor/"


def _states(memory: Memory) -> dict[str, State]:
    """Return the compressor's states by tensor, from what a client keeps."""
    states: dict[str, State] = {}
    for name, value in memory.items():
        if name.startswith(_PREFIX):
            tensor, key = name.removeprefix(_PREFIX).rsplit("/", 1)
            states.setdefault(tensor, {})[key] = value
    return states
