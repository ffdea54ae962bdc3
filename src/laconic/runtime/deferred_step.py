"""Averages that arrive after backward, and the optimizer's step on each of them when it has.

`step()` then only remembers the settings it was called with. Before a layer computes again, its gate brings home the
messages that carry its gradients, and the user's optimizer steps on its parameters alone. Messages come home in one
order, the most urgent first, so that all workers start whatever follows from them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from laconic.runtime.buckets import BucketMessage
from laconic.runtime.in_flight import complete
from laconic.runtime.reducer import Reducer


class DeferredStep:
    """What one session has under way between a backward pass and the next forward pass."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._reducer: Reducer | None = None
        self._order: list[BucketMessage] = []
        self._bucket_of = 0  # so many of them are
        self._left: dict[int, None] = {}  # parameters that have not been dealt with
        self._step: Callable[[], Any] | None = None
        self._optimizer: Optimizer | None = None
        self._settings: list[dict[str, Any]] = []
        self._members: dict[tuple[int, ...], list[list[nn.Parameter]]] = {}

    @property
    def pending(self) -> bool:
        """Whether something has not arrived, or was not applied."""
        return self._reducer is not None

    def hold(self, reducer: Reducer) -> None:
        """Backward is over: all that this reducer has sent is awaited later."""
        self._reducer = reducer
        self._order = sorted(reducer.active, key=lambda message: message.urgency)
        self._bucket_of = 0
        self._left = dict.fromkeys(i for message in self._order for i in message.carried)
        self._step = None

    def step(self, optimizer: Optimizer) -> None:
        """The user's step: with the settings of now, on each parameter when its gradient is there."""
        self._optimizer, self._step = optimizer, optimizer.step
        self._settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        for i in self._left:
            self._parameters[i].grad = None
        for message in self._order:
            if message.plan.halves and message.in_flight is not None and not message.in_flight.arrived:
                message.in_flight.advance()  # everybody has a share of the sums; now they are handed round

    def apply(self, which: Sequence[int]) -> None:
        """Before these are used: what they need arrives, and the optimizer steps on them. Not before `step`."""
        if self._step is None or self._reducer is None:
            return
        chosen = [i for i in which if i in self._left]
        if not chosen:
            return
        self._arrive(chosen)
        self._reducer.settle_some(chosen)
        with self._only(tuple(chosen)):
            self._step()
        for i in chosen:
            del self._left[i]
            self._parameters[i].grad = None
        if not self._left:
            self._forget()

    def settle(self) -> None:
        """Everything arrives now: into `p.grad` before the user has stepped, into the parameters after it."""
        if self._reducer is None:
            return
        if self._step is not None:
            self.apply(list(self._left))
            return
        own = [i for i in self._left if self._reducer.has_own(i)]
        if own and all(self._parameters[i].grad is None for i in own):  # zeroed since, by the model's own zero_grad
            self.drop()
            return
        self._arrive(list(self._left))
        self._reducer.settle_some(self._left)
        self._forget()

    def drop(self) -> None:
        """The user has zeroed the gradients without a step: what is on its way arrives for nobody."""
        if self._reducer is not None and self._step is None:
            self._forget()

    def _arrive(self, which: Sequence[int]) -> None:
        assert self._reducer is not None
        needed = {id(message) for i in which for message in self._reducer.needed_for(i)}
        last = max((k for k, message in enumerate(self._order) if id(message) in needed), default=-1)
        if last >= self._bucket_of:
            complete(
                [
                    message.in_flight
                    for message in self._order[self._bucket_of : last + 1]
                    if message.in_flight is not None
                ]
            )
            self._bucket_of = last + 1

    def _forget(self) -> None:
        assert self._reducer is not None
        complete([message.in_flight for message in self._order[self._bucket_of :] if message.in_flight is not None])
        self._reducer.forget()
        self._reducer, self._step, self._order, self._left = None, None, [], {}

    @contextmanager
    def _only(self, which: tuple[int, ...]) -> Iterator[None]:
        """The optimizer's groups with these parameters alone, and the settings they had at `step()`."""
        assert self._optimizer is not None
        groups = self._optimizer.param_groups
        if which not in self._members or len(self._members[which]) != len(groups):
            chosen = {id(self._parameters[i]) for i in which}
            self._members[which] = [[p for p in group["params"] if id(p) in chosen] for group in groups]
        before = [dict(group) for group in groups]
        try:
            for group, settings, members in zip(groups, self._settings, self._members[which], strict=True):
                group.update(settings)
                group["params"] = members
            yield
        finally:
            for group, was in zip(groups, before, strict=True):
                group.update(was)
