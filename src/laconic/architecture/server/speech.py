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

from laconic.compression.base import Compressor, Outcome, State, TensorSpec
from laconic.compression.none import Identity
from laconic.worker import Gather, Meet, Reduce, Request

_PLAIN = Identity()


def spoken_by(compressor: Compressor, spec: TensorSpec) -> Compressor:
    """Who speaks for such a tensor: it goes as it is where the compressor leaves it alone."""
    return compressor if compressor.accepts(spec) else _PLAIN


def speak(compressor: Compressor, x: Tensor, state: State, meet: Meet) -> tuple[list[Tensor], Outcome]:
    """What travels, and what the speaker remembers."""
    words: list[Tensor] = []

    def answer(request: Request) -> Any:
        words.append(request.tensor.detach().clone())
        return _alone(request, request.tensor)

    return words, _hold(compressor, x, state, meet, answer)


def listen(compressor: Compressor, spec: TensorSpec, words: Sequence[Tensor], meet: Meet) -> Tensor:
    """The tensor that was meant."""
    heard = iter(words)

    def answer(request: Request) -> Any:
        return _alone(request, next(heard))

    empty = torch.zeros(spec.shape, dtype=spec.dtype)
    return _hold(compressor, empty, compressor.init(spec), meet, answer).result


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
    return word.unsqueeze(0) if isinstance(request, Gather) else [word]
