"""Gradients of a model on a mesh whose devices have different tokens: those of the mean of their losses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import DeviceMesh

from laconic.parallel.device_groups import groups_of
from laconic.parallel.experts.layer import layers_of_experts
from laconic.runtime.undistributed import note_distributed
from laconic.worker import Group


def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Make the gradients of a model those of the mean of all devices' losses, after their backward passes.

    What is whole on every device is averaged over all of them. The gradient of an expert that `shard_experts` has put
    on one device of n comes from the tokens of all n already, as a sum: it is divided by n, and averaged over the
    expert's copies alone. Where devices have unequal numbers of tokens and the loss is a mean over tokens, let each
    device multiply its mean by its number of tokens over the mean number.

    - `mesh`: all devices that have different tokens; for a model with experts, that of `shard_experts`.
    """
    note_distributed()
    groups, devices = list(groups_of(mesh).values()), mesh.size()
    layers = layers_of_experts(model).values()
    copies = {id(p): layer.copies for layer in layers if layer.is_cut for p in layer.experts.parameters()}
    whole = [p.grad for p in model.parameters() if p.grad is not None and id(p) not in copies]
    _average(whole, groups, devices)
    for layer in layers:
        if layer.is_cut:
            _average([p.grad for p in layer.experts.parameters() if p.grad is not None], layer.copies, devices)


def _average(gradients: Sequence[Tensor], groups: Sequence[Group], devices: int) -> None:
    """Sum gradients over groups, those of a format in one message, and divide them by the number of devices."""
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        same = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = _flatten_dense_tensors(same)
        for group in groups:
            flat = group.all_reduce(flat).wait()
        flat = flat / devices
        for gradient, mean in zip(same, _unflatten_dense_tensors(flat, same), strict=True):
            gradient.copy_(mean)
