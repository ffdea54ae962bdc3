"""`laconic.batched`: the losses and gradients of all virtual workers in one computation.

N virtual workers that compute one after the other launch N times the kernels, each too small for a GPU. A loss that is
written as a function of a model and a batch needs that only once: one `vmap` over the stacked parameters and batches of
all workers computes it, and each worker gets its own gradients back. On a GPU the whole of it is recorded as a CUDA
graph, which reads the parameters where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from laconic.errors import ContractError
from laconic.runtime.autograd_hooks import OnForward
from laconic.runtime.current_worker import current
from laconic.virtual.worker import VirtualWorker

Loss = Callable[..., Tensor]
_WARM_UP = 3  # computations before one is recorded, in which kernels are chosen and compiled
_RECORDINGS = 4  # after so many, parameters move too often for graphs


def batched(loss: Loss, compile: bool = False) -> Loss:
    """Return a loss that virtual workers compute together, and whose `backward()` gives each its own gradients.

    Use it where a script computes its loss: `value = laconic.batched(loss)(model, x, y)`, then `value.backward()`.
    Every worker calls it equally often, with batches of equal shapes. Among real workers it is the loss itself.

    - `loss`: a function of the model and of the tensors of a batch that returns the mean loss. It may call the model
      once or several times, but reads nothing from the device, and must not depend on the worker otherwise.
    - `compile`: compile what is computed (by torch's inductor), which takes up to a minute and pays in long runs.
    """

    def compute(model: nn.Module, *batch: Tensor) -> Tensor:
        worker = current()
        if not isinstance(worker, VirtualWorker) or not torch.is_grad_enabled():
            return loss(model, *batch)
        return _with_the_others(worker, loss, compile, model, batch)

    return compute


def _with_the_others(
    worker: VirtualWorker, loss: Loss, compile: bool, model: nn.Module, batch: tuple[Tensor, ...]
) -> Tensor:
    parameters = list(model.parameters())
    asked = Asked(parameters, batch)
    value, row, used = worker.compute_together((loss, model), lambda: Computation(loss, model, compile), asked)
    out: Tensor = _Known.apply(value, row, *(parameters[i] for i in used))  # type: ignore[no-untyped-call]
    for hook in tuple(model._forward_hooks.values()):
        if isinstance(hook, OnForward):  # who follows the model's passes sees the loss as its output
            revived = hook(model, batch, out)  # where no parameter needs a gradient in this step
            out = out if revived is None else revived
    return out


@dataclass(frozen=True)
class Asked:
    """What one worker gives: its parameters and its batch."""

    parameters: list[nn.Parameter]
    batch: tuple[Tensor, ...]

    @property
    def places(self) -> tuple[int, ...]:
        return tuple([p.data_ptr() for p in self.parameters])


class _Known(torch.autograd.Function):
    """A loss whose gradients are known already, one after another in a row: backward hands them out."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, row: Tensor, *parameters: Tensor) -> Tensor:
        ctx.row, ctx.shapes = row, [p.shape for p in parameters]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        parts = (ctx.row * outer[0]).split([shape.numel() for shape in ctx.shapes])
        return None, None, *(part.view(shape) for part, shape in zip(parts, ctx.shapes, strict=True))


class Computation:
    """The losses and gradients of all workers: `vmap` of a function over stacked parameters and batches."""

    def __init__(self, loss: Loss, model: nn.Module, compile: bool) -> None:
        self._loss = loss
        self._compiles = compile
        self._gradients: Callable[[list[Tensor], list[Tensor]], tuple[Tensor, Tensor]] | None = None
        self._model = deepcopy(model)  # a copy has none of the hooks by which a session follows the model
        self._names = [name for name, _ in model.named_parameters()]
        self._used: list[int] = []
        self._runs = 0
        self._recordings = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._places: tuple[Any, ...] = ()
        self._batch: list[Tensor] = []
        self._result: tuple[Tensor, Tensor]

    def __call__(self, asked: Sequence[Asked]) -> list[tuple[Tensor, Tensor, list[int]]]:
        """Return each worker's loss, its gradients as one row, and the numbers of the parameters that have one."""
        shapes = {tuple(x.shape for x in one.batch) for one in asked}
        if len(shapes) > 1:
            raise ContractError(
                f"batched() stacks the workers' batches, and their shapes differ ({', '.join(map(str, shapes))}): "
                "make them equal, or call the loss itself"
            )
        batch = [torch.stack(parts) for parts in zip(*(one.batch for one in asked), strict=True)]
        compute = self._recorded if asked[0].parameters[0].is_cuda else self._computed
        losses, rows = compute(asked, batch)
        return [(value, row, self._used) for value, row in zip(losses.unbind(), rows.unbind(), strict=True)]

    def _computed(self, asked: Sequence[Asked], batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute all losses, and all gradients as one row for each worker."""
        columns = zip(*(one.parameters for one in asked), strict=True)
        stacked = [torch.stack([p.detach() for p in column]) for column in columns]
        if self._gradients is None:
            self._gradients = self._compiled(stacked, batch) if self._compiles else self._eager
        losses, rows = self._gradients(stacked, batch)
        return losses, rows

    def _eager(self, stacked: list[Tensor], batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        leaves = [x.detach().requires_grad_() for x in stacked]

        def one(parameters: list[Tensor], parts: list[Tensor]) -> Tensor:
            named = dict(zip(self._names, parameters, strict=True))
            return self._loss(lambda *given: functional_call(self._model, named, given), *parts)

        losses: Tensor = vmap(one, randomness="different")(leaves, batch)
        found = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        self._used = [i for i, gradient in enumerate(found) if gradient is not None]
        return losses.detach(), torch.cat([gradient.flatten(1) for gradient in found if gradient is not None], 1)

    def _compiled(self, stacked: list[Tensor], batch: list[Tensor]) -> Callable[..., Any]:
        """Compile losses and gradients as one graph of operations.

        `torch.compile` would replace the interpreter's evaluation of frames for all threads of the process, and the
        other workers' threads are in the middle of theirs: it was seen to crash them. Tracing touches no frame.
        """
        from torch._inductor import compile  # both take a second to load
        from torch.fx.experimental.proxy_tensor import make_fx

        count = len(stacked)

        def flat(*given: Tensor) -> tuple[Tensor, Tensor]:
            return self._eager(list(given[:count]), list(given[count:]))

        inputs: list[Any] = [*stacked, *batch]
        compiled: Any = compile(make_fx(flat)(*inputs), inputs)
        return lambda stacked, batch: compiled(*stacked, *batch)

    def _recorded(self, asked: Sequence[Asked], batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute as a CUDA graph does: it reads the parameters where they were when it was recorded."""
        self._runs += 1
        places = (*(one.places for one in asked), *(x.shape for x in batch))
        if self._graph is None or places != self._places:
            if self._runs <= _WARM_UP or self._recordings == _RECORDINGS:
                return self._on_the_side(asked, batch)
            self._record(asked, batch)
            self._places = places
        for kept, given in zip(self._batch, batch, strict=True):
            kept.copy_(given)
        assert self._graph is not None
        self._graph.replay()
        losses, rows = self._result
        return losses.clone(), rows.clone()  # the next replay writes over them

    def _on_the_side(self, asked: Sequence[Asked], batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute on another stream, as recording does: autograd remembers the stream of its first use."""
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            result = self._computed(asked, batch)
        here.wait_stream(side)
        return result

    def _record(self, asked: Sequence[Asked], batch: list[Tensor]) -> None:
        self._recordings += 1
        self._batch = [x.clone() for x in batch]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = self._computed(asked, self._batch)
