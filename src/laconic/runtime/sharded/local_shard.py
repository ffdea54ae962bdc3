"""This worker's shard of a parameter, as a parameter: what rules between replicas of a sharded model work on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class LocalShard(nn.Parameter):
    """A plain parameter that lies in the same memory as this worker's part of a `DTensor`, and has its gradient.

    Gradients are read from the sharded parameter and written to it. Its hooks are the sharded parameter's, which
    `fully_shard` calls when a gradient has been scattered.
    """

    whole: Any

    @staticmethod
    def of(parameter: Any) -> LocalShard:
        """Return the shard of a sharded parameter, which it keeps alive."""
        shard = torch.Tensor._make_subclass(LocalShard, parameter.detach().to_local(), parameter.requires_grad)
        shard.whole = parameter
        return shard

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        gradient = self.whole.grad
        if gradient is not None and gradient.placements != self.whole.placements:  # a sum that is not complete, say
            gradient = self.whole.grad = gradient.redistribute(placements=self.whole.placements)
        return None if gradient is None else gradient.to_local()

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        if gradient is None or self.whole.grad is None:
            self.whole.grad = None if gradient is None else sharded_like(self.whole, gradient)
        elif self.grad is not gradient:
            self.whole.grad.to_local().copy_(gradient)

    def register_post_accumulate_grad_hook(self, hook: Any) -> RemovableHandle:  # type: ignore[override]
        return self.whole.register_post_accumulate_grad_hook(hook)  # type: ignore[no-any-return]


def is_sharded(parameter: Tensor) -> bool:
    """Return whether a parameter is a `DTensor`; its class is not loaded where nobody has made one."""
    return type(parameter.data).__name__ == "DTensor"


def local_part(tensor: Tensor) -> Tensor:
    """Return this worker's part of a `DTensor`, and any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined, no-any-return]


def sharded_like(parameter: Any, local: Tensor) -> Tensor:
    """Return the `DTensor` that is sharded as a parameter is, and of which this is the worker's part."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local.view(parameter.to_local().shape),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
