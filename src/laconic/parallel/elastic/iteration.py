"""One iteration of several pipelines, which may cut the model differently: all of it, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.parallel.elastic.sending import NodeLost, Send, ask
from laconic.worker import ActorMessage

Piece = tuple[int, int, int]
"""A node, and the layers that it computes: first and end."""
Microbatch = tuple[Tensor, Tensor]
"""The inputs and the targets of a microbatch."""


@dataclass(frozen=True)
class Gradients:
    """What an iteration found: for each layer the sum of gradients over all samples, the sum of losses, and how often
    each microbatch was counted."""

    by_layer: dict[int, tuple[Tensor, ...]]
    loss: float
    counted: Counter[int]


def compute_gradients(
    pipelines: Sequence[Sequence[Piece]], shares: Sequence[int], microbatches: Sequence[Microbatch], send: Send
) -> Gradients:
    """Return the gradients of one iteration, summed per layer over pipelines; nothing is applied. `NodeLost` is raised
    where a node does not answer, and then all of it is to be done again.

    - `pipelines`: the pieces of each, in the order of layers.
    - `shares`: how many microbatches each pipeline gets, in their order.
    - `microbatches`: of the global batch.
    - `send`: reaches nodes.
    """
    sums: dict[int, list[tuple[Tensor, ...]]] = {}
    counted: Counter[int] = Counter()
    loss, start = 0.0, 0
    for pieces, share in zip(pipelines, shares, strict=True):
        numbers = range(start, start + share)
        start += share
        for number in numbers:
            loss += _pass(pieces, number, microbatches[number], send)
        counted.update(numbers)
        chosen = (torch.tensor(list(numbers), dtype=torch.int64),)
        for node, first, end in pieces:
            for layer in range(first, end):
                answer = ask(send, node, ActorMessage("contribute", {"layer": layer}, chosen), True)
                sums.setdefault(layer, []).append(answer.tensors)
    total = {
        layer: tuple(sum(parts[1:], parts[0]) for parts in zip(*of_layer, strict=True))
        for layer, of_layer in sums.items()
    }
    return Gradients(total, loss, counted)


def _pass(pieces: Sequence[Piece], number: int, microbatch: Microbatch, send: Send) -> float:
    """Lead a microbatch forward and backward through a pipeline, and return its loss."""
    inputs, loss = [microbatch[0]], 0.0
    for node, first, end in pieces[:-1]:
        message = ActorMessage("forward", {"first": first, "end": end}, (inputs[-1],))
        inputs.append(ask(send, node, message, False).tensors[0])
    gradient = microbatch[1]
    for (node, first, end), values in zip(reversed(pieces), reversed(inputs), strict=True):
        fields = {"first": first, "end": end, "microbatch": number}
        answer = ask(send, node, ActorMessage("backward", fields, (values, gradient)), True)
        gradient = answer.tensors[0]
        loss += float(answer.tensors[1])
    return loss


def apply_gradients(
    pipelines: Sequence[Sequence[Piece]], gradients: Gradients, samples: int, step: int, send: Send
) -> set[int]:
    """Let all nodes take a step with the mean gradients, and return those that did not answer: the others have taken
    it.

    - `samples`: of the global batch, by which sums are divided.
    - `step`: its number, from 1.
    """
    lost = set()
    for pieces in pipelines:
        for node, first, end in pieces:
            try:
                for layer in range(first, end):
                    mean = tuple(total / samples for total in gradients.by_layer[layer])
                    ask(send, node, ActorMessage("step", {"layer": layer, "step": step}, mean), True)
            except NodeLost:
                lost.add(node)
    return lost
