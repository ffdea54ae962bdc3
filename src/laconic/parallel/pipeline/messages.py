"""Messages between the devices of a pipeline: activations forward, gradients backward, with receives posted ahead."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from laconic.errors import PipelineError
from laconic.parallel.pipeline.boundary import BoundaryCode
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.parallel.pipeline.task import Op, Task
from laconic.worker import Group, Handle

AHEAD = 2
"""Receives that are posted for each other device before their messages are needed."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)
_HEADER = 10


class Messages:
    """What one device sends and receives, in its order.

    The shapes of a microbatch's activations are sent before them in the first step and stay.

    - `group`: the devices, by rank.
    - `codes`: how what a stage sends to the next is encoded ("forward", stage), and what comes back ("backward",
      stage); what is not listed is sent as it is.
    """

    def __init__(
        self, pipeline: Pipeline, group: Group, codes: Mapping[tuple[Literal["forward", "backward"], int], BoundaryCode]
    ) -> None:
        self.pipeline, self.group, self.codes = pipeline, group, codes
        self.to = {task: to for task, source, to in pipeline.crossings() if source == group.rank}
        self.source = {task: source for task, source, to in pipeline.crossings() if to == group.rank}
        self._shapes: dict[tuple[int, int], tuple[torch.Size, torch.dtype]] = {}  # by boundary and microbatch
        self._expected: dict[int, deque[Task]] = defaultdict(deque)
        self._posted: dict[Task, tuple[Handle, Tensor]] = {}
        self._sends: list[tuple[Handle, Tensor]] = []
        self._samples: Sequence[Sequence[int]] | None = None
        self._step = 0

    def begin(self, samples: Sequence[Sequence[int]] | None = None) -> None:
        """Begin a step: note which messages will come, in which order, and which samples each microbatch has."""
        self._samples = samples
        for task in self.pipeline.orders[self.group.rank]:
            needed = self.pipeline.needed(task)
            if needed in self.source:
                self._expected[self.source[needed]].append(needed)
        for source in self._expected:
            self._post(source)

    def end(self) -> None:
        """Wait until everything of a step has been sent."""
        for handle, _ in self._sends:
            handle.wait()
        self._sends.clear()
        self._step += 1

    def send(self, task: Task, tensor: Tensor) -> None:
        """Send the result of a task to where it is needed."""
        to, place = self.to[task], _boundary(task)
        if task.op is Op.FORWARD:
            shape = (tensor.shape, tensor.dtype)
            known = self._shapes.setdefault(place, shape)
            if known != shape:
                raise PipelineError(
                    f"microbatch {task.microbatch} had the shape {tuple(known[0])} after stage {task.stage}, and now "
                    f"has {tuple(shape[0])}; microbatches keep their shapes, so leave out the last, smaller batch"
                )
            if self._step == 0:
                self._start(_header(tensor), to, task, control=1.0)
        code = self._code(task)
        sent = tensor.detach().contiguous()
        self._start(sent if code is None else code.encode(sent, self._samples_of(task)), to, task)

    def _start(self, tensor: Tensor, to: int, task: Task, control: float = 0.0) -> None:
        self._sends.append((self.group.send(tensor, to, self._tag(task), control), tensor))

    def receive(self, task: Task) -> Tensor:
        """Return the result of a task of another device, once it has arrived."""
        source = self.source[task]
        if task not in self._posted:
            self._expected[source].remove(task)
            self._post_one(task)
        handle, tensor = self._posted.pop(task)
        handle.wait()
        self._post(source)
        shape, dtype = self._shapes[_boundary(task)]
        code = self._code(task)
        return tensor if code is None else code.decode(tensor, shape, self._samples_of(task)).to(dtype)

    def _post(self, source: int) -> None:
        """Post receives for the next messages of a device whose shapes are known."""
        expected = self._expected[source]
        posted = sum(self.source[task] == source for task in self._posted)
        while expected and posted < AHEAD and _boundary(expected[0]) in self._shapes:
            self._post_one(expected.popleft())
            posted += 1

    def _post_one(self, task: Task) -> None:
        source, place, tag = self.source[task], _boundary(task), self._tag(task)
        if place not in self._shapes:
            header = torch.empty(_HEADER, dtype=torch.int64)
            self.group.receive(header, source, tag, control=1.0).wait()
            self._shapes[place] = _read(header)
        shape, dtype = self._shapes[place]
        code = self._code(task)
        into = (
            torch.empty(shape, dtype=dtype)
            if code is None
            else torch.empty(code.nbytes(shape, self._samples_of(task)), dtype=torch.uint8)
        )
        self._posted[task] = (self.group.receive(into, source, tag), into)

    def _code(self, task: Task) -> BoundaryCode | None:
        return self.codes.get(("forward" if task.op is Op.FORWARD else "backward", task.border))

    def _samples_of(self, task: Task) -> Sequence[int] | None:
        return None if self._samples is None else self._samples[task.microbatch]

    def _tag(self, task: Task) -> int:
        return 2 * (task.stage * self.pipeline.microbatches + task.microbatch) + (task.op is Op.FORWARD)


def _boundary(task: Task) -> tuple[int, int]:
    """Return between which stages a result travels, by the first of them, and its microbatch."""
    return (task.border, task.microbatch)


def _header(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _DTYPES or tensor.ndim > _HEADER - 2:
        raise PipelineError(f"a stage sends {tensor.dtype} of {tensor.ndim} dimensions, which no header describes")
    values = [_DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape]
    return torch.tensor(values + [0] * (_HEADER - len(values)))


def _read(header: Tensor) -> tuple[torch.Size, torch.dtype]:
    values: Iterator[int] = iter(header.tolist())
    dtype, ndim = _DTYPES[next(values)], next(values)
    return torch.Size([next(values) for _ in range(ndim)]), dtype
