"""A device that changes from one model to another: groups of layers arrive while those that are there compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laconic.cluster.sharing.pipeswitch import Grouping, Transfer, group
from laconic.errors import ClusterError

_ALIGNMENT = 256  # bytes: every type of tensor may begin there
_PIECES = (1, 8, 64)  # into which a model is cut to find what a copy costs beside its bytes


class Switched:
    """A model that waits in the host's memory, pinned where a GPU fetches it from there, and is brought to a region of
    the device's memory that was allocated before: each group of layers by one copy, in the order in which layers
    compute (PipeSwitch, Bai et al., OSDI 2020).

    Copies run on a stream of their own, and layers wait for the event that ends their group's copy, so groups that have
    arrived compute while others are on their way. On a CPU, which has no streams, a group is copied at the moment at
    which the first of its layers is called.

    Models that take turns share a region: a switch overwrites what the model before has left there, once that has
    computed. Weights are for inference; what a training changes on the device is not brought back.

    - `model`: on the device; its parameters and buffers become views of the region.
    - `example`: a batch on the device, whose forward pass shows the order of the layers.
    - `region`: bytes on the device, as many as `bytes_needed(model)` at least; default: newly allocated ones.
    """

    def __init__(self, model: nn.Module, example: Tensor, region: Tensor | None = None) -> None:
        needed = bytes_needed(model)
        self.device = example.device
        self.region = torch.empty(needed, dtype=torch.uint8, device=self.device) if region is None else region
        if self.region.device != self.device or self.region.dtype != torch.uint8 or self.region.numel() < needed:
            raise ClusterError(f"a region for this model is a tensor of {needed} bytes or more on {self.device}")
        self.model = model.eval()
        called, silent = _order(model, example)
        self._host = torch.empty(needed, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        self._starts = [0]
        placed: set[int] = set()
        for number, layer in enumerate(called):
            owners = [*silent, layer] if not number else [layer]  # what is used without a call has to be there first
            self._starts.append(self._place(owners, self._starts[-1], placed))
            layer.register_forward_pre_hook(partial(self._called, number))
        self.layers: Sequence[nn.Module] = called
        self._copying = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._ends: tuple[int, ...] = ()
        self._events: list[torch.cuda.Event] = []
        self._there = 0  # groups that layers need not wait for any more
        self.bring()

    @property
    def nbytes(self) -> list[float]:
        """The bytes of each layer, in the order in which they compute."""
        return np.diff(self._starts).astype(float).tolist()

    def start(self, ends: Sequence[int], *inputs: Tensor) -> Any:
        """Bring the model to the device in groups, and return the outputs of its forward pass, in which groups compute
        as they arrive.

        - `ends`: for each group, the number of layers up to its end; the last is that of all layers.
        - `inputs`: of the forward pass.
        """
        with torch.no_grad():
            self.send(ends)
            self.arrive(0)  # with the tensors that are used without a call
            found = self.model(*inputs)
            self.arrive(len(self.layers) - 1)  # and layers that these inputs did not call
        return found

    def bring(self) -> None:
        """Bring the whole model by one copy; what computes next on this stream waits for it."""
        self.send((len(self.layers),))
        self.arrive(len(self.layers) - 1)

    def send(self, ends: Sequence[int]) -> None:
        """Begin to copy groups, each as one piece; without streams, note alone which groups there are.

        - `ends`: for each group, the number of layers up to its end; the last is that of all layers.
        """
        if not ends or ends[-1] != len(self.layers) or list(ends) != sorted({0, *ends})[1:]:
            raise ClusterError(f"groups of {len(self.layers)} layers have ends that ascend from 1 or more up to that")
        self._ends, self._there = tuple(ends), 0
        if self._copying is None:
            return
        self._copying.wait_stream(torch.cuda.current_stream(self.device))  # what computes there still reads the region
        cuts = [0, *(self._starts[end] for end in ends)]
        with torch.cuda.stream(self._copying):
            self._events = [self._copied(*cut) for cut in pairwise(cuts)]

    def arrive(self, layer: int) -> None:
        """Let what computes next on this stream wait for a layer's group. Layers do that when they are called; where
        none is called, as a captured graph computes, it is to be done before.

        - `layer`: its number.
        """
        while self._there < len(self._ends) and layer >= (self._ends[self._there - 1] if self._there else 0):
            if self._copying is None:
                begin = self._starts[self._ends[self._there - 1] if self._there else 0]
                end = self._starts[self._ends[self._there]]
                self.region[begin:end].copy_(self._host[begin:end])
            else:
                torch.cuda.current_stream(self.device).wait_event(self._events[self._there])
            self._there += 1

    def grouping(self, *inputs: Tensor, repeats: int = 5) -> Grouping:
        """Return the groups with which the model starts soonest, by what is measured of its layers and of the way to
        the device.

        - `inputs`: of a forward pass.
        - `repeats`: measurements, of which the medians count.
        """
        return group(self.nbytes, self.layer_seconds(*inputs, repeats=repeats), self.transfer(repeats))

    def layer_seconds(self, *inputs: Tensor, repeats: int = 5) -> list[float]:
        """Return how long each layer takes in a forward pass of the model on the device: from its call to that of the
        next, in proportion such that all take as long as a forward pass in which nobody looks at the clock.

        - `inputs`: of the forward pass.
        - `repeats`: forward passes, of which the medians count.
        """
        rows: list[list[float]] = []
        with torch.no_grad():
            whole = statistics.median([self._timed(lambda: self.model(*inputs)) for _ in range(repeats + 2)][2:])
            with self._watched() as marks:
                for _ in range(repeats):
                    marks.clear()
                    self.model(*inputs)
                    marks.append(self._mark())
                    self._synchronize()
                    rows.append([_seconds(a, b) for a, b in pairwise(marks)])
        parts = np.median(np.array(rows), axis=0)
        found: list[float] = (parts * whole / parts.sum()).tolist()
        return found

    def transfer(self, repeats: int = 5) -> Transfer:
        """Return the way to the device, by copies of the whole model in few pieces and in many: what more pieces take
        longer is the cost of a call.

        - `repeats`: copies of each kind, of which the medians count.
        """
        total = self._starts[-1]
        times = []
        for pieces in _PIECES:
            cuts = np.linspace(0, total, pieces + 1).astype(int).tolist()
            taken = [self._timed(partial(self._copy_all, cuts)) for _ in range(repeats + 1)]
            times.append(statistics.median(taken[1:]))
        call, _ = np.polyfit(_PIECES, times, 1)
        call = min(max(float(call), 0.0), times[0] / 2)
        return Transfer(total / (times[0] - call), call)

    def _place(self, owners: Sequence[nn.Module], at: int, placed: set[int]) -> int:
        """Copy the modules' own tensors to the host's memory from a place on, put views of the region into their stead,
        and return where they end. Tied ones come with the first of their modules."""
        for tensor in (tensor for owner in owners for tensor in _own(owner)):
            if id(tensor) in placed:
                continue
            placed.add(id(tensor))
            size = tensor.numel() * tensor.element_size()
            self._host[at : at + size].copy_(tensor.detach().contiguous().flatten().view(torch.uint8))
            tensor.data = self.region[at : at + size].view(tensor.dtype).view(tensor.shape)
            at += _aligned(size)
        return at

    def _copied(self, begin: int, end: int) -> torch.cuda.Event:
        self.region[begin:end].copy_(self._host[begin:end], non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return event

    def _called(self, layer: int, *_: Any) -> None:
        self.arrive(layer)

    def _copy_all(self, cuts: Sequence[int]) -> None:
        """Copy the model in pieces, as groups are copied."""
        for begin, end in pairwise(cuts):
            if self._copying is None:
                self.region[begin:end].copy_(self._host[begin:end])
            else:
                with torch.cuda.stream(self._copying):
                    self._copied(begin, end)

    def _timed(self, what: Callable[[], Any]) -> float:
        """Return how long something takes until the device has done it."""
        self._synchronize()
        begin = time.perf_counter()
        what()
        self._synchronize()
        return time.perf_counter() - begin

    def _synchronize(self) -> None:
        if self._copying is not None:
            torch.cuda.synchronize(self.device)

    def _mark(self) -> Any:
        """Return the time: an event on the stream, or that of the clock."""
        if self._copying is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def _watched(self) -> Iterator[list[Any]]:
        """Note when each layer is called first."""
        marks: list[Any] = []

        def seen(number: int, *_: Any) -> None:
            if number == len(marks):
                marks.append(self._mark())

        hooks = [layer.register_forward_pre_hook(partial(seen, i)) for i, layer in enumerate(self.layers)]
        try:
            yield marks
        finally:
            for hook in hooks:
                hook.remove()


def bytes_needed(model: nn.Module) -> int:
    """Return the bytes of a region that holds a model.

    - `model`: whose parameters and buffers count, tied ones once.
    """
    tensors = {id(tensor): tensor for module in model.modules() for tensor in _own(module)}
    return sum(_aligned(tensor.numel() * tensor.element_size()) for tensor in tensors.values())


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _own(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module without those of modules inside it."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _order(model: nn.Module, example: Tensor) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return the modules with tensors of their own, in the order in which a forward pass calls them first, and those
    that it does not call."""
    owners = [module for module in model.modules() if _own(module)]
    called: list[nn.Module] = []

    def seen(module: nn.Module, *_: Any) -> None:
        if module not in called:
            called.append(module)

    hooks = [owner.register_forward_pre_hook(seen) for owner in owners]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ClusterError("a model that is brought in groups has at least one layer with parameters")
    return called, [owner for owner in owners if owner not in called]


def _seconds(begin: Any, end: Any) -> float:
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)
