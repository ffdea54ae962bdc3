"""Averages that arrive after backward, and the optimizer's step on each of them once it has arrived.

`step()` then only remembers the settings it was called with. Before a layer computes again, its gate waits for the
messages that carry its gradients, and the user's optimizer steps on its parameters alone. Messages are completed in one
order, the most urgent first, so that all workers start in the same order whatever depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.errors import ContractError
from laconic.runtime.buckets import BucketMessage
from laconic.runtime.in_flight import complete
from laconic.runtime.reducer import Reducer


class DeferredStep:
    """The messages that one session has in flight between a backward pass and the next forward pass."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._reducer: Reducer | None = None
        self._order: list[BucketMessage] = []
        self._arrived_count = 0  # how many messages of the order have been completed
        self._unapplied: dict[int, None] = {}  # parameters whose gradients have not been applied
        self._own: dict[int, tuple[Tensor, int]] = {}  # this worker's gradients after backward, and their versions
        self._step: Callable[[], Any] | None = None
        self._optimizer: Optimizer | None = None
        self._settings: list[dict[str, Any]] = []
        self._members: dict[tuple[int, ...], list[list[nn.Parameter]]] = {}

    @property
    def pending(self) -> bool:
        """Whether a message has not arrived or has not been applied."""
        return self._reducer is not None

    def defer(self, reducer: Reducer) -> None:
        """Take over all messages that this reducer has sent in the backward pass that has just ended."""
        self._reducer = reducer
        self._order = sorted(reducer.active, key=lambda message: message.urgency)
        self._arrived_count = 0
        self._unapplied = dict.fromkeys(i for message in self._order for i in message.carried)
        self._step = None
        found = ((i, self._parameters[i].grad) for i in self._unapplied)
        self._own = {i: (g, g._version) for i, g in found if g is not None and not reducer.is_in_bucket(i, g)}

    def step(self, optimizer: Optimizer) -> None:
        """Remember the user's step: it is made with the present settings, on each parameter once its gradient has
        arrived."""
        self._refuse_changed_gradients()
        self._optimizer, self._step = optimizer, optimizer.step
        self._settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        for i in self._unapplied:
            self._parameters[i].grad = None
        for message in self._order:
            if message.plan.halves and message.in_flight is not None and not message.in_flight.arrived:
                message.in_flight.advance()  # wait for the reduce-scatter, start the all-gather

    def apply(self, which: Sequence[int]) -> None:
        """Wait for the gradients of these parameters and step on them, before they are used. Without a `step` so far,
        do nothing."""
        if self._step is None or self._reducer is None:
            return
        chosen = [i for i in which if i in self._unapplied]
        if not chosen:
            return
        self._wait_for(chosen)
        self._reducer.settle_parameters(chosen)
        with self._restricted_to(tuple(chosen)):
            self._step()
        for i in chosen:
            del self._unapplied[i]
            self._parameters[i].grad = None
        if not self._unapplied:
            self._forget()

    def settle(self) -> None:
        """Wait for everything now: it is written into `p.grad` before the user has stepped, and applied to the
        parameters after it."""
        if self._reducer is None:
            return
        if self._step is not None:
            self.apply(list(self._unapplied))
            return
        own = [i for i in self._unapplied if self._reducer.has_gradient(i)]
        if own and all(self._parameters[i].grad is None for i in own):  # zeroed since, by the model's own zero_grad
            self.drop()
            return
        self._refuse_changed_gradients()
        self._wait_for(list(self._unapplied))
        self._reducer.settle_parameters(self._unapplied)
        self._forget()

    def drop(self) -> None:
        """Discard the averages in flight, where the user has zeroed the gradients without a step."""
        if self._reducer is not None and self._step is None:
            self._forget()

    def _refuse_changed_gradients(self) -> None:
        """Refuse a gradient that was clipped or changed otherwise since backward: what is applied is the average, which
        arrives later and would silently replace the change."""
        for i, (gradient, version) in self._own.items():
            now = self._parameters[i].grad
            if now is not gradient or gradient._version != version:
                raise ContractError(
                    "a gradient was changed between backward() and step(), and this schedule brings the averages only "
                    "in the next forward pass, so the change would be lost: clip with laconic.clip_grad_norm_("
                    "optimizer, max_norm), which waits for them, or write a schedule that has them after backward(), "
                    "such as wfbp"
                )
        self._own = {}

    def _wait_for(self, which: Sequence[int]) -> None:
        assert self._reducer is not None
        needed = {id(message) for i in which for message in self._reducer.needed_for(i)}
        last = max((k for k, message in enumerate(self._order) if id(message) in needed), default=-1)
        if last >= self._arrived_count:
            complete(
                [
                    message.in_flight
                    for message in self._order[self._arrived_count : last + 1]
                    if message.in_flight is not None
                ]
            )
            self._arrived_count = last + 1

    def _forget(self) -> None:
        assert self._reducer is not None
        complete([message.in_flight for message in self._order[self._arrived_count :] if message.in_flight is not None])
        self._reducer.forget()
        self._reducer, self._step, self._order, self._unapplied, self._own = None, None, [], {}, {}

    @contextmanager
    def _restricted_to(self, which: tuple[int, ...]) -> Iterator[None]:
        """Restrict the optimizer's groups to these parameters, with the settings they had at `step()`."""
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
            for group, saved in zip(groups, before, strict=True):
                group.update(saved)
