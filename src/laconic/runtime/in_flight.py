"""How exchanges advance: generators in lockstep, waited for in an order that all workers share.

A *communication* is a generator that yields the handles it has just started and is resumed when they are done.
Communications are started in hooks without waiting and completed later. All of one round are waited for and answered in
the same order on every worker, so that collectives of later rounds meet their counterparts whatever the timing was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.compression.base import Exchange
from laconic.worker import (
    Awaited,
    CodedSum,
    Coding,
    Communication,
    Gather,
    GatherRagged,
    Handle,
    Reduce,
    Request,
    Scatter,
    ScatterRagged,
    Swap,
)


class InFlight:
    """A communication whose first messages have been sent.

    With a `lane`, all it computes is queued on a CUDA stream of its own, and it goes on by itself as long as only that
    stream has to wait for its messages. Whoever uses what it computed calls `join` first.
    """

    def __init__(self, communication: Communication[Any], lane: torch.cuda.Stream | None = None) -> None:
        self._communication, self.lane = communication, lane
        self.result: Any = None
        self._awaited: Awaited | None = []
        if lane is None:
            self._resume(None)
            return
        current = torch.cuda.current_stream(lane.device)
        lane.wait_stream(current)
        torch.cuda.set_stream(lane)
        try:
            self._resume(None)
            while self._awaited is not None and all(map(is_stream_ordered, handles_of(self._awaited))):
                self._resume(waited_for(self._awaited))
        finally:
            torch.cuda.set_stream(current)

    @property
    def arrived(self) -> bool:
        return self._awaited is None

    def advance(self) -> None:
        """Wait for the messages in flight and start those that depend on them."""
        assert self._awaited is not None
        if self.lane is None:
            self._resume(waited_for(self._awaited))
            return
        with torch.cuda.stream(self.lane):
            self._resume(waited_for(self._awaited))

    def join(self) -> None:
        """Let the current stream wait for what the lane computes."""
        if self.lane is not None:
            torch.cuda.current_stream(self.lane.device).wait_stream(self.lane)

    def is_ready(self) -> bool:
        """Return whether the messages it waits for now have all arrived."""
        return self._awaited is None or all(handle.done() for handle in handles_of(self._awaited))

    def rest(self) -> Communication[Any]:
        """Return the rest of it as a communication of its own, driven by the generator that waits for it now."""
        while self._awaited is not None:
            self._resume((yield self._awaited))
        return self.result

    def _resume(self, answer: Any) -> None:
        try:
            self._awaited = self._communication.send(answer)
        except StopIteration as end:
            self._awaited, self.result = None, end.value


def handles_of(awaited: Awaited) -> list[Handle]:
    """Return the operations that a communication waits for."""
    return awaited if isinstance(awaited, list) else [awaited]


def answer_to(awaited: Awaited, results: Sequence[Any]) -> Any:
    """Return these results as the communication that waits for them expects them."""
    return list(results) if isinstance(awaited, list) else results[0]


def waited_for(awaited: Awaited) -> Any:
    """Wait for these operations, and return what the communication is to be resumed with."""
    return answer_to(awaited, [handle.wait() for handle in handles_of(awaited)])


def is_stream_ordered(handle: Handle) -> bool:
    """Return whether waiting for this operation blocks the current CUDA stream and not the host."""
    return getattr(handle, "stream_ordered", False)


def complete(communications: Iterable[InFlight]) -> None:
    """Wait until all communications are complete: round by round, in the given order."""
    communications = list(communications)
    unfinished = [each for each in communications if not each.arrived]
    while unfinished:
        for each in unfinished:
            each.advance()
        unfinished = [each for each in unfinished if not each.arrived]
    for each in {id(each.lane): each for each in communications}.values():
        each.join()


def concurrently(communications: Sequence[Communication[Any]]) -> Communication[list[Any]]:
    """Combine several communications into one: all operations of a round are started before any is waited for."""
    results: list[Any] = [None] * len(communications)
    answers: dict[int, Any] = dict.fromkeys(range(len(communications)))
    while answers:
        started: dict[int, Awaited] = {}
        for i, answer in answers.items():
            try:
                started[i] = communications[i].send(answer)
            except StopIteration as end:
                results[i] = end.value
        if not started:
            break
        arrived = iter((yield [handle for awaited in started.values() for handle in handles_of(awaited)]))
        answers = {i: answer_to(each, [next(arrived) for _ in handles_of(each)]) for i, each in started.items()}
    return results


def pipelined(communications: Iterable[Communication[Any]], width: int) -> Communication[None]:
    """Run communications of which so many are in flight at a time: the next is begun as soon as one has ended."""
    rest = iter(communications)
    flying: list[tuple[Communication[Any], Awaited]] = []

    def launch() -> None:
        for communication in rest:
            if (awaited := _sent(communication, None)) is not None:
                flying.append((communication, awaited))
                return

    for _ in range(width):
        launch()
    while flying:
        waiting, answers = list(flying), iter((yield [h for _, awaited in flying for h in handles_of(awaited)]))
        flying.clear()
        for communication, awaited in waiting:
            answer = answer_to(awaited, [next(answers) for _ in handles_of(awaited)])
            following = _sent(communication, answer)
            if following is None:
                launch()
            else:
                flying.append((communication, following))


def _sent(communication: Communication[Any], answer: Any) -> Awaited | None:
    """Resume a communication; return what it waits for now, or None if it is complete."""
    try:
        return communication.send(answer)
    except StopIteration:
        return None


def run_exchange(
    exchange: Generator[Request, Any, Any], carry: Callable[[Request], Communication[Any]]
) -> Communication[Any]:
    """Run one exchange as a communication."""
    answer: Any = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield from carry(request)


def run_exchanges(
    exchanges: Sequence[Exchange], carry: Callable[[Request], Communication[Any]]
) -> Communication[list[Any]]:
    """Run the exchanges of several tensors as one communication: equal requests of a round share a message."""
    outcomes: list[Any] = [None] * len(exchanges)
    requests: dict[int, Request] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(exchanges)))
    while answers:
        requests.clear()
        for i, answer in answers.items():
            try:
                requests[i] = exchanges[i].send(answer)
            except StopIteration as end:
                outcomes[i] = end.value
        merged = _merge(requests)
        results = yield from concurrently([carry(batch.request) for batch in merged])
        answers = {}
        for batch, result in zip(merged, results, strict=True):
            answers.update(batch.split(result))
    return outcomes


@dataclass(frozen=True)
class _Batch:
    """Requests of several exchanges that are sent as one message."""

    request: Request
    members: tuple[int, ...]
    shapes: tuple[torch.Size, ...]

    def split(self, result: Any) -> dict[int, Any]:
        if isinstance(self.request, GatherRagged | ScatterRagged):
            return {member: [parts[k] for parts in result] for k, member in enumerate(self.members)}
        if len(self.members) == 1:
            return {self.members[0]: result}
        lengths = [shape.numel() for shape in self.shapes]
        if isinstance(self.request, Reduce | CodedSum | Swap):
            parts = [part.view(shape) for part, shape in zip(result.split(lengths), self.shapes, strict=True)]
        else:
            size = result.shape[0]
            columns = result.split(lengths, dim=1)
            parts = [part.reshape(size, *shape) for part, shape in zip(columns, self.shapes, strict=True)]
        return dict(zip(self.members, parts, strict=True))


def _merge(requests: dict[int, Request]) -> list[_Batch]:
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, request in requests.items():
        how = (type(request), getattr(request, "op", None), request.tensor.dtype)
        alike.setdefault(how if isinstance(request, _TOGETHER) else (*how, i), []).append(i)
    batches = []
    for members in alike.values():
        tensors = [requests[i].tensor for i in members]
        request = _joined([requests[i] for i in members], tensors)
        each = 1 if isinstance(request, Scatter) else 0  # a scattered tensor has a row for each worker
        batches.append(_Batch(request, tuple(members), tuple(x.shape[each:] for x in tensors)))
    return batches


_TOGETHER = (Reduce, Gather, GatherRagged, Scatter, ScatterRagged, CodedSum, Swap)
"""The requests that several tensors may share in one message."""


def _joined(requests: Sequence[Request], tensors: Sequence[Tensor]) -> Request:
    """Return one request for all of these, which are alike, with these tensors."""
    first = requests[0]
    if isinstance(first, ScatterRagged):
        return _scattered_together([request for request in requests if isinstance(request, ScatterRagged)])
    if isinstance(first, GatherRagged):
        return GatherRagged(_flat(tensors), tuple(x.numel() for x in tensors))
    if len(tensors) == 1:
        return first
    if isinstance(first, Scatter):
        return Scatter(torch.cat([x.reshape(len(x), -1) for x in tensors], dim=1))
    if isinstance(first, Reduce):
        return Reduce(_flat(tensors), first.op)
    if isinstance(first, Swap):
        return Swap(_flat(tensors))
    if isinstance(first, CodedSum):
        codings = [request.coding for request in requests if isinstance(request, CodedSum)]
        codes = tuple(code for coding in codings for code in coding.codes)
        return CodedSum(_flat(tensors), Coding(codes, tuple(n for coding in codings for n in coding.lengths)))
    return Gather(_flat(tensors))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors]) if len(tensors) > 1 else tensors[0].reshape(-1)


def _scattered_together(requests: Sequence[ScatterRagged]) -> ScatterRagged:
    """Return one request whose vector for each worker is that of every request, one behind another."""
    rows = [request.tensor.split([sum(row) for row in request.lengths]) for request in requests]
    lengths = tuple(
        tuple(n for each in row for n in each) for row in zip(*(request.lengths for request in requests), strict=True)
    )
    return ScatterRagged(torch.cat([x for row in zip(*rows, strict=True) for x in row]), lengths, parts=True)
