"""Interlocking backpropagation: each module learns from a loss a few modules behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.registry import technique


@technique(
    "interlocking_backprop",
    axis="parallel",
    paper="Gomez et al., JMLR 23(171), 2022",
    why_no_word="It takes a model in modules with auxiliary heads; call `interlocking_backward`.",
)
def interlocking_backward(
    modules: Sequence[nn.Module],
    heads: Sequence[nn.Module],
    loss: Callable[[Tensor, Any], Tensor],
    inputs: Tensor,
    targets: Any,
    window: int,
) -> list[Tensor]:
    """Pass a batch forward and add to every module the gradient of the loss that is its own; return all losses.

    The loss of head j passes back through module j and those before it, `window` in all and no further. A module's own
    loss is that of the farthest head whose window it is in: with a window of one its own head's (local learning), with
    as many as there are modules the last head's (ordinary backpropagation). Heads learn from their own losses alone.
    Whether the paper sums the losses inside a window is not known to us.

    - `modules`: the model, cut in parts that follow each other, one for each device.
    - `heads`: as many, from a module's output to a prediction.
    - `loss`: of predictions and targets.
    - `window`: how many modules a loss passes back through.
    """
    count = len(modules)
    if len(heads) != count or not 1 <= window <= count:
        raise LaconicError(f"{count} modules need as many heads, and a window of 1 to {count}")
    starts: list[Tensor] = []
    ends: list[Tensor] = []
    x = inputs
    for module in modules:
        start = x.detach()
        starts.append(start.requires_grad_() if start.is_floating_point() else start)
        x = module(starts[-1])
        ends.append(x)
    losses: list[Tensor] = []
    for last, head in enumerate(heads):
        end = ends[last].detach().requires_grad_()
        found = loss(head(end), targets)
        losses.append(found.detach())
        own = [p for p in head.parameters() if p.requires_grad]
        gradient, *of_head = torch.autograd.grad(found, [end, *own])
        _add(own, of_head)
        for place in range(last, max(-1, last - window), -1):
            module, start = modules[place], starts[place]
            learns = min(place + window, count) - 1 == last
            weights = [p for p in module.parameters() if p.requires_grad] if learns else []
            goes_on = place > max(0, last - window + 1)
            wanted = [*([start] if goes_on else []), *weights]
            if not wanted:
                break
            found_here = torch.autograd.grad(ends[place], wanted, gradient, retain_graph=True, allow_unused=True)
            _add(weights, found_here[goes_on:])
            if goes_on:
                gradient = found_here[0]
    return losses


def _add(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def idle_slots(devices: int, window: int, batches: int = 24) -> list[float]:
    """Return how many slots each device is idle for a batch, once the pipeline is full and every pass takes one.

    A device passes a batch forward, passes gradients of the heads in its window backward as they arrive, and begins the
    next batch when its own weights have been updated.
    """
    done: dict[tuple[str, int, int, int], int] = {}  # by pass, head, device and batch: the slot after which it is done
    busy: list[list[int]] = [[] for _ in range(devices)]
    left = [
        [("F", -1, place, k) for k in range(batches)]
        + [("B", head, place, k) for k in range(batches) for head in range(place, min(place + window, devices))]
        for place in range(devices)
    ]
    slot = 0
    while any(left):
        begun = []
        for place, tasks in enumerate(left):
            able = [
                task
                for task in tasks
                if all(done.get(need, slot + 1) <= slot for need in _needs(task, devices, window))
            ]
            if able:
                begun.append((place, min(able, key=lambda task: (task[3], task[0] == "F", -task[1]))))
        slot += 1
        for place, task in begun:
            left[place].remove(task)
            done[task] = slot
            busy[place].append(slot)
    first, last = batches // 3, 2 * batches // 3
    idle = []
    for place in range(devices):
        begin, end = done["F", -1, place, first], done["F", -1, place, last]
        working = sum(begin <= at < end for at in busy[place])
        idle.append((end - begin - working) / (last - first))
    return idle


def _needs(task: tuple[str, int, int, int], devices: int, window: int) -> list[tuple[str, int, int, int]]:
    what, head, place, k = task
    if what == "F":
        before = [("F", -1, place - 1, k)] if place else []
        own = min(place + window, devices) - 1
        return before + ([("B", own, place, k - 1)] if k else [])
    return [("F", -1, place, k) if head == place else ("B", head, place + 1, k)]
