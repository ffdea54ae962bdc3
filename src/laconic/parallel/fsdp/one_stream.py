"""Sharded models of virtual workers on a GPU: one thread and one CUDA stream for each worker's whole step.

The workers of a simulation meet inside the hooks of backward, where `fully_shard` gathers and scatters. Autograd runs
the hooks of a device in one thread for all, in which two workers would wait for each other; and `fully_shard` queues
its copies on streams that other workers' exchanges know nothing of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPCommContext


class OneStream(FSDPCommContext):
    """What `fully_shard` keeps for all parts of a model, with the current stream in place of its own."""

    def lazy_init(self, device: torch.device) -> None:
        super().lazy_init(device)
        self.stay_here()

    def stay_here(self) -> None:
        """Take the current stream for everything."""
        here = self.device_handle.current_stream()
        self.all_gather_copy_in_stream = self.all_gather_stream = here
        self.reduce_scatter_stream = self.all_reduce_stream = here


def step_in_one_stream(model: Any) -> None:
    """Let this thread compute the gradients of a model that `fully_shard` was called on, in the current stream."""
    torch.autograd.set_multithreading_enabled(False)
    context = model._get_fsdp_state()._comm_ctx
    context.__class__ = OneStream
    if hasattr(context, "all_gather_stream"):  # the model has computed before
        context.stay_here()
