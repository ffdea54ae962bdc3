"""The only module that touches autograd: hooks on parameters and outputs, and the end of a backward pass.

Hooks enqueue; nothing waits in them (on CUDA all hooks of a device share one thread, and two workers of one process
that waited for each other there would deadlock). A backward pass is recognised by the hook on the model's outputs,
which belongs to the outermost graph, so that a nested backward (reentrant checkpointing) does not look like the end. A
loss that bypasses the model's `forward` is recognised by the first gradient that becomes ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle


class EndsBackward(Protocol):
    """An object that can run a callback at the end of a backward pass: a worker, or a stand-in for one."""

    def at_end_of_backward(self, finish: Callable[[], None]) -> None: ...


class BackwardHooks:
    """Hooks that call `on_gradient(i)` when parameter i has its gradient, and `on_end()` once after each backward pass.

    `on_forward()` follows each forward pass that records a graph, `on_abandoned()` a backward pass that raised. While
    `skips()` is true and nothing that a forward pass used requires a gradient, its outputs are made to require one, so
    that backward has an end. Unless it `reports` gradients, backward passes have no hooks at all; `report_gradients`
    changes it. (A tensor that once had such a hook is slower ever after, since torch asks it whether it still has.)
    """

    def __init__(
        self,
        worker: EndsBackward,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        on_forward: Callable[[], None],
        on_gradient: Callable[[int], None],
        on_end: Callable[[], None],
        on_abandoned: Callable[[], None],
        skips: Callable[[], bool] = lambda: False,
        reports: bool = True,
    ) -> None:
        self._worker, self._on_gradient, self._on_end, self._on_abandoned = worker, on_gradient, on_end, on_abandoned
        self._parameters = parameters
        self._pass: int | None = None
        self._by_output = False
        self._on_gradients: list[RemovableHandle] = []
        on_output = OnForward(on_forward, self._output, skips, lambda: bool(self._on_gradients))
        self._removable = model.register_forward_hook(on_output)
        self.report_gradients(reports)

    def report_gradients(self, wanted: bool) -> None:
        if wanted and not self._on_gradients:
            hooks = ref(self)  # a tensor's hooks are out of the garbage collector's sight
            self._on_gradients = [
                p.register_post_accumulate_grad_hook(partial(_report, hooks, i)) for i, p in enumerate(self._parameters)
            ]
        elif not wanted:
            for handle in self._on_gradients:
                handle.remove()
            self._on_gradients = []

    def remove(self) -> None:
        self.report_gradients(False)
        self._removable.remove()

    def _output(self, gradient: Tensor) -> None:
        here = torch._C._current_graph_task_id()
        if self._pass == here:
            return
        if self._pass is not None:  # the last pass raised before its end
            self._on_abandoned()
        self._begin(here, by_output=True)

    def _gradient_elsewhere(self, here: int) -> None:
        """Handle a gradient of another pass than the last: it begins one, unless the model's outputs have begun it."""
        if self._pass is not None and not self._by_output:
            self._on_abandoned()
            self._pass = None
        if self._pass is None:
            self._begin(here, by_output=False)

    def _begin(self, graph_pass: int, by_output: bool) -> None:
        self._pass, self._by_output = graph_pass, by_output
        self._worker.at_end_of_backward(self._end)

    def _end(self) -> None:
        self._pass = None
        self._on_end()


def _report(hooks: ref[BackwardHooks], i: int, parameter: Tensor) -> None:
    """Report a gradient to hooks that other references keep alive; the model holds its session, and so its hooks."""
    if (alive := hooks()) is not None:
        if alive._pass != (here := torch._C._current_graph_task_id()):
            alive._gradient_elsewhere(here)
        alive._on_gradient(i)


class OwnHook:
    """A hook that belongs to this model alone: a copy or pickle of the model (an average of weights, say) gets an idle
    one."""

    def __init__(self, act: Callable[..., Any] | None = None) -> None:
        self._act = act

    def __call__(self, *given: Any) -> Any:
        return None if self._act is None else self._act(*given)

    def __reduce__(self) -> tuple[type[OwnHook], tuple[()]]:
        return OwnHook, ()


class OnForward:
    """A forward hook that reports the pass and marks its outputs. A copy or pickle of the model (an EMA, say) gets an
    idle one."""

    def __init__(
        self,
        on_forward: Callable[[], None] | None = None,
        on_output: Callable[[Tensor], None] | None = None,
        skips: Callable[[], bool] = lambda: False,
        reports: Callable[[], bool] = lambda: True,
    ) -> None:
        self._on_forward, self._on_output, self._skips, self._reports = on_forward, on_output, skips, reports

    def __call__(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        if self._on_forward is None or self._on_output is None:
            return None
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None  # a compiled backward is one node: its first gradient marks the pass
        self._on_forward()
        if not self._reports():
            return None
        revived = self._skips() and not any(isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(outputs))
        if revived:
            outputs = tree_map(_requiring, outputs)
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor) and (leaf.grad_fn is not None or (revived and leaf.requires_grad)):
                leaf.register_hook(self._on_output)
        return outputs if revived else None

    def __reduce__(self) -> tuple[type[OnForward], tuple[()]]:
        return OnForward, ()


def _requiring(output: Any) -> Any:
    """Return the same output as a leaf that requires a gradient, which ends there."""
    floating = isinstance(output, Tensor) and output.is_floating_point()
    return output.detach().requires_grad_() if floating else output
