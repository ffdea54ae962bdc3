"""A compressor between two processes: one encodes, the other decodes.

Compressors are written as exchanges among many workers. In an exchange of one, a worker's requests answer themselves,
and the tensors of its requests are what must be sent. The receiver runs the same exchange with an empty tensor, and
takes the sender's tensors in place of its own: so every compressor also works between a worker and a server, without a
second implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Outcome, State
from laconic.compression.none import Identity
from laconic.errors import ContractError
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Field, Gather, GatherRagged, Meet, Reduce, Request

_PLAIN = Identity()


def compressor_for(compressor: Compressor, spec: TensorSpec) -> Compressor:
    """Return the compressor, or the identity for a tensor that the compressor does not accept."""
    return compressor if compressor.accepts(spec) else _PLAIN


def encode_one(compressor: Compressor, x: Tensor, state: State, meet: Meet) -> tuple[list[Tensor], Outcome]:
    """Encode a tensor: return the payload tensors to send, and the outcome with the sender's new state."""
    payload: list[Tensor] = []

    def answer(request: Request) -> Any:
        payload.append(request.tensor.detach().clone())
        return _result_alone(request, request.tensor)

    return payload, _run(compressor, x, state, meet, answer)


def decode_one(compressor: Compressor, spec: TensorSpec, payload: Sequence[Tensor], meet: Meet) -> Tensor:
    """Decode the tensor that a sender encoded as these payload tensors."""
    received = iter(payload)

    def answer(request: Request) -> Any:
        return _result_alone(request, next(received))

    empty = torch.zeros(spec.shape, dtype=spec.dtype)
    return _run(compressor, empty, compressor.init(spec), meet, answer).result


def encode_all(
    compressor: Compressor,
    specs: Sequence[TensorSpec],
    tensors: Sequence[Tensor],
    memory: dict[str, State],
    meeting: Callable[[str], Meet],
) -> tuple[dict[str, Field], tuple[Tensor, ...]]:
    """Encode several tensors for one message: the field that counts each one's payload tensors, and all of these."""
    counts: list[int] = []
    payload: list[Tensor] = []
    for spec, x in zip(specs, tensors, strict=True):
        codec = compressor_for(compressor, spec)
        if spec.name not in memory:
            memory[spec.name] = codec.init(spec)
        encoded, outcome = encode_one(codec, x, memory[spec.name], meeting(spec.name))
        memory[spec.name] = outcome.state
        counts.append(len(encoded))
        payload += encoded
    return {"words": counts}, tuple(payload)


def decode_all(
    compressor: Compressor, specs: Sequence[TensorSpec], message: ActorMessage, meeting: Callable[[str], Meet]
) -> list[Tensor]:
    """Decode the tensors of a message that `encode_all` made, or raise if its counts do not fit."""
    counts = message.fields.get("words")
    lengths = [n for n in counts if isinstance(n, int)] if isinstance(counts, list) else []
    if len(lengths) != len(specs) or sum(lengths) != len(message.tensors) or min(lengths, default=0) < 0:
        raise ContractError(f"{len(message.tensors)} payload tensors in a {message.kind} do not fit this shard")
    remaining, decoded = list(message.tensors), []
    for spec, count in zip(specs, lengths, strict=True):
        payload, remaining = remaining[:count], remaining[count:]
        decoded.append(decode_one(compressor_for(compressor, spec), spec, payload, meeting(spec.name)))
    return decoded


def _run(compressor: Compressor, x: Tensor, state: State, meet: Meet, answer: Callable[[Request], Any]) -> Outcome:
    exchange = compressor.exchange(x, state, meet)
    reply: Any = None
    while True:
        try:
            request = exchange.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        reply = answer(request)


def _result_alone(request: Request, payload: Tensor) -> Any:
    """Return a request's result in an exchange of one member, whose payload is given."""
    if isinstance(request, Reduce):
        return payload.view(request.tensor.shape)
    if isinstance(request, Gather):
        return payload.unsqueeze(0)
    return [payload] if isinstance(request, GatherRagged) else payload
