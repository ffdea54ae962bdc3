"""Which parameters the flat gradients of a sharded module are of, so that memory stays with its tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from laconic.parallel.fsdp.mesh import layout_of, parameter_group
from laconic.runtime.sharded.layout import ShardLayout


class UsedParameters:
    """The parameters of a module that have had a gradient since they were last scattered.

    `fully_shard` leaves those without one out of the flat tensor and does not say which these are: another set of
    parameters is another tensor, even where its length is the same.
    """

    def __init__(self, name: str, module: Any) -> None:
        self._name, self._module = name, module
        self._used: set[int] = set()
        self._watched: dict[int, RemovableHandle] = {}
        group = parameter_group(module)
        self._forward = [part.register_forward_pre_hook(self._watch) for part in group.modules]

    @torch.compiler.disable
    def _watch(self, module: nn.Module, inputs: Any) -> None:
        """Watch the gathered parameters, which `fully_shard` makes before the first forward pass and keeps."""
        for i, parameter in enumerate(parameter_group(self._module).fsdp_params):
            gathered = getattr(parameter, "_unsharded_param", None)
            if i not in self._watched and gathered is not None and gathered.requires_grad:
                self._watched[i] = gathered.register_post_accumulate_grad_hook(partial(_note, self._used, i))

    def take(self, numel: int, size: int) -> str:
        """Return the name of a flat tensor of so many values over so many ranks, and begin anew."""
        used, trained = sorted(self._used), layout_of(self._module, size)
        self._used.clear()
        if trained.numel == numel:
            return self._name
        if layout_of(self._module, size, used).numel == numel:
            return f"{self._name}[{','.join(map(str, used))}]"
        return f"{self._name}[{numel} values]"  # a module that is called by another method than forward

    def layout(self, name: str, size: int) -> ShardLayout | None:
        """Return where values lie in the flat tensor of a name that `take` returned, or None where nobody knows."""
        inside = name.removeprefix(self._name)
        if not inside:
            return layout_of(self._module, size)
        places = inside.strip("[]").split(",")
        return layout_of(self._module, size, [int(i) for i in places]) if all(i.isdigit() for i in places) else None

    def remove(self) -> None:
        """Watch nothing any more."""
        for handle in [*self._forward, *self._watched.values()]:
            handle.remove()


def _note(used: set[int], i: int, parameter: Any) -> None:
    used.add(i)
