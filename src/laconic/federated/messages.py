"""What travels between a client and the server: named vectors, tensor by tensor, each as its compressor writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from laconic.architecture.server.point_to_point import compressor_for, decode_all, encode_all
from laconic.compression.base import Compressor, State
from laconic.compression.optional import joins_of
from laconic.errors import ContractError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Layout, Vectors
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Field, whole

SERVER = -1
"""The number of the server, where random numbers are drawn for its messages."""
NUMBER_BYTES = 8
"""What a number of a rule takes."""


@dataclass(frozen=True, eq=False)
class Message:
    """Encoded vectors, and the small numbers that a rule sends beside them.

    - `payloads`: for each vector, the counts of its tensors' payloads, and these.
    - `numbers`: what the rule says beside them.
    - `masks`: the length of each mask, and its bits, eight to a byte.
    - `raw`: tensors that are sent as they are.
    """

    payloads: Mapping[str, tuple[Mapping[str, Field], tuple[Tensor, ...]]]
    numbers: Mapping[str, float]
    masks: Mapping[str, tuple[int, Tensor]] = field(default_factory=dict)
    raw: Vectors = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of payloads, masks and raw tensors; a number of a rule has eight more, which are counted as
        control."""
        encoded = sum(x.nbytes for _, tensors in self.payloads.values() for x in tensors)
        masks = sum(packed.nbytes for _, packed in self.masks.values())
        return encoded + masks + sum(x.nbytes for x in self.raw.values())

    @property
    def control_bytes(self) -> int:
        return NUMBER_BYTES * len(self.numbers)

    def written(self) -> tuple[dict[str, Field], tuple[Tensor, ...]]:
        """Return the message as small fields and tensors, as it travels."""
        fields: dict[str, Field] = {
            "vectors": list(self.payloads),
            "numels": [whole(own, "numel") for own, _ in self.payloads.values()],
            "counts": [len(_words(own)) for own, _ in self.payloads.values()],
            "words": [n for own, _ in self.payloads.values() for n in _words(own)],
            "names": list(self.numbers),
            "values": [float(value) for value in self.numbers.values()],
            "masks": list(self.masks),
            "bits": [numel for numel, _ in self.masks.values()],
            "raw": list(self.raw),
        }
        encoded = [x for _, tensors in self.payloads.values() for x in tensors]
        return fields, (*encoded, *(packed for _, packed in self.masks.values()), *self.raw.values())

    @classmethod
    def read(cls, fields: Mapping[str, Field], tensors: Sequence[Tensor]) -> Message:
        """Return the message that travelled as these fields and tensors; one that does not fit together is refused."""
        vectors, names, masks, raw = (_listed(fields, name, str) for name in ("vectors", "names", "masks", "raw"))
        numels, counts, words, bits = (_listed(fields, name, int) for name in ("numels", "counts", "words", "bits"))
        values = _listed(fields, "values", float)
        fits = len(vectors) == len(numels) == len(counts) == len(set(vectors)) and len(names) == len(values)
        fits = fits and len(masks) == len(bits) and len(tensors) == sum(words) + len(masks) + len(raw)
        if not fits or sum(counts) != len(words) or min([*counts, *words, *bits], default=0) < 0:
            raise ContractError("the parts of a message do not fit together")
        if not all(map(math.isfinite, values)):
            raise ContractError("a number of a message is not finite")
        payloads: dict[str, tuple[Mapping[str, Field], tuple[Tensor, ...]]] = {}
        of_words, of_tensors = iter(words), iter(tensors)
        for vector, numel, count in zip(vectors, numels, counts, strict=True):
            own = list(islice(of_words, count))
            payloads[vector] = {"words": own, "numel": numel}, tuple(islice(of_tensors, sum(own)))
        packed = {name: (numel, next(of_tensors)) for name, numel in zip(masks, bits, strict=True)}
        return cls(payloads, dict(zip(names, values, strict=True)), packed, {name: next(of_tensors) for name in raw})


@dataclass(frozen=True)
class Wire:
    """How vectors of a model are encoded, by one compressor.

    A random draw depends on the seed, the round, the sender and the tensor, so that the same message comes out wherever
    it is made.
    """

    compressor: Compressor
    layout: Layout
    seed: int = 0

    def among(self, clients: int) -> Wire:
        """Return how each of so many clients of a round encodes: alone, unless their messages are added."""
        return self

    def encode(
        self,
        vectors: Vectors,
        numbers: Mapping[str, float],
        sender: int,
        version: int,
        memory: Memory,
        masks: Vectors | None = None,
        raw: Vectors | None = None,
    ) -> tuple[Message, Memory]:
        """Return the message of these vectors, and what the sender's compressor remembers after it, by name.

        - `raw`: tensors that are sent beside them as they are.
        """
        states = _states(memory)
        payloads = {}
        for name, vector in vectors.items():
            layout = self.named(name, vector.numel())
            meeting = partial(self._meeting, sender, version)
            tensors = layout.split(vector.clone())
            fields, payload = encode_all(self.compressor, layout.specs, tensors, states, meeting)
            payloads[name] = {**fields, "numel": vector.numel()}, payload
        kept = {f"{_PREFIX}{tensor}/{key}": x for tensor, state in states.items() for key, x in state.items()}
        packed = {name: (mask.numel(), _packed(mask)) for name, mask in (masks or {}).items()}
        return Message(payloads, dict(numbers), packed, dict(raw or {})), kept

    def decode(self, message: Message, sender: int, version: int) -> dict[str, Tensor]:
        """Return the vectors of a message, and the tensors that were sent as they are."""
        found = dict(message.raw)
        for name, (fields, tensors) in message.payloads.items():
            written = ActorMessage("vector", dict(fields), tensors)
            if not 0 <= (numel := written.number("numel")) <= self.layout.numel:
                raise ContractError(f"the vector {name!r} of client {sender} is longer than the model")
            layout = self.named(name, numel)
            meeting = partial(self._meeting, sender, version)
            found[name] = layout.join(decode_all(self.compressor, layout.specs, written, meeting))
        return found

    def masks(self, message: Message, sender: int) -> dict[str, Tensor]:
        """Return the masks of a message."""
        found = {}
        for name, (numel, packed) in message.masks.items():
            if not 0 <= numel <= self.layout.numel or packed.numel() != -(-numel // 8):
                raise ContractError(f"the mask {name!r} of client {sender} has not a bit for each of its scalars")
            found[name] = torch.from_numpy(np.unpackbits(packed.numpy(), count=numel).astype(bool))
        return found

    def most_bytes(self, numels: Mapping[str, int]) -> int:
        """Return the bytes of a message of vectors of these lengths, at most."""
        specs = [spec for name, numel in numels.items() for spec in self.named(name, numel).specs]
        return sum(compressor_for(self.compressor, spec).payload_bytes(spec, 1) for spec in specs)

    def named(self, vector: str, numel: int) -> Layout:
        """Return the layout of a vector: each has tensors, and memories, of its own. One that is shorter than the model
        is encoded as a whole, and so is every one where the compressor joins tensors."""
        if numel != self.layout.numel or joins_of(self.compressor):
            return Layout((TensorSpec(vector, (numel,), torch.float32),))
        return Layout(tuple(replace(spec, name=f"{vector}/{spec.name}") for spec in self.layout.specs))

    def _meeting(self, sender: int, version: int, tensor: str) -> Meeting:
        return Meeting(sender, 1, version, tensor, self.seed)


def _packed(mask: Tensor) -> Tensor:
    """Return a mask, eight bits to a byte."""
    return torch.from_numpy(np.packbits(mask.numpy()))


_PREFIX = "compressor/"
_T = TypeVar("_T", int, float, str)


def _words(fields: Mapping[str, Field]) -> list[int]:
    return _listed(fields, "words", int)


def _listed(fields: Mapping[str, Field], name: str, kind: type[_T]) -> list[_T]:
    """Return a field that is a list of such values; refuse a message that lacks it."""
    found = fields.get(name)
    if not isinstance(found, list) or not all(type(value) is kind for value in found):
        raise ContractError(f"the field {name!r} is a list of {kind.__name__}s")
    return [value for value in found if isinstance(value, kind)]


def _states(memory: Memory) -> dict[str, State]:
    """Return the compressor's states by tensor, from what a client keeps."""
    states: dict[str, State] = {}
    for name, value in memory.items():
        if name.startswith(_PREFIX):
            tensor, key = name.removeprefix(_PREFIX).rsplit("/", 1)
            states.setdefault(tensor, {})[key] = value
    return states
