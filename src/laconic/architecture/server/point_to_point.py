"""A compressor between two: one speaks, the other listens.

Compressors are written as meetings of many. Alone, a worker's requests answer themselves, and what it requested is what
must travel. Whoever listens holds the same meeting with an empty tensor, and hears the other's words in place of its
own: so every compressor can also speak to a server, without a second way of writing it.
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
    """Who speaks for such a tensor: it goes as it is where the compressor leaves it alone."""
    return compressor if compressor.accepts(spec) else _PLAIN


def encode_one(compressor: Compressor, x: Tensor, state: State, meet: Meet) -> tuple[list[Tensor], Outcome]:
    """What travels, and what the speaker remembers."""
    words: list[Tensor] = []

    def answer(request: Request) -> Any:
        words.append(request.tensor.detach().clone())
        return _alone(request, request.tensor)

    return words, _hold(compressor, x, state, meet, answer)


def decode_one(compressor: Compressor, spec: TensorSpec, words: Sequence[Tensor], meet: Meet) -> Tensor:
    """The tensor that was meant."""
    heard = iter(words)

    def answer(request: Request) -> Any:
        return _alone(request, next(heard))

    empty = torch.zeros(spec.shape, dtype=spec.dtype)
    return _hold(compressor, empty, compressor.init(spec), meet, answer).result


def encode_all(
    compressor: Compressor,
    specs: Sequence[TensorSpec],
    tensors: Sequence[Tensor],
    memory: dict[str, State],
    meeting: Callable[[str], Meet],
) -> tuple[dict[str, Field], tuple[Tensor, ...]]:
    """Several tensors in one letter: how many words each has, and all words."""
    counts: list[int] = []
    words: list[Tensor] = []
    for spec, x in zip(specs, tensors, strict=True):
        speaker = compressor_for(compressor, spec)
        if spec.name not in memory:
            memory[spec.name] = speaker.init(spec)
        spoken, outcome = encode_one(speaker, x, memory[spec.name], meeting(spec.name))
        memory[spec.name] = outcome.state
        counts.append(len(spoken))
        words += spoken
    return {"words": counts}, tuple(words)


def decode_all(
    compressor: Compressor, specs: Sequence[TensorSpec], message: ActorMessage, meeting: Callable[[str], Meet]
) -> list[Tensor]:
    """The tensors of such a letter, if that is what it is."""
    counts = message.fields.get("words")
    lengths = [n for n in counts if isinstance(n, int)] if isinstance(counts, list) else []
    if len(lengths) != len(specs) or sum(lengths) != len(message.tensors) or min(lengths, default=0) < 0:
        raise ContractError(f"{len(message.tensors)} words in a {message.kind} are not those of this shard")
    rest, heard = list(message.tensors), []
    for spec, count in zip(specs, lengths, strict=True):
        words, rest = rest[:count], rest[count:]
        heard.append(decode_one(compressor_for(compressor, spec), spec, words, meeting(spec.name)))
    return heard


def _hold(compressor: Compressor, x: Tensor, state: State, meet: Meet, answer: Callable[[Request], Any]) -> Outcome:
    exchange = compressor.exchange(x, state, meet)
    reply: Any = None
    while True:
        try:
            request = exchange.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        reply = answer(request)


def _alone(request: Request, word: Tensor) -> Any:
    """What a meeting of one brings."""
    if isinstance(request, Reduce):
        return word.view(request.tensor.shape)
    if isinstance(request, Gather):
        return word.unsqueeze(0)
    return [word] if isinstance(request, GatherRagged) else word
