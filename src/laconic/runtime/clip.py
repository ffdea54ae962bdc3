"""Gradient clipping that knows when the gradients are averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim

from laconic.errors import ContractError
from laconic.runtime.handed_over import rival_of
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.runtime.session import Session
from laconic.runtime.sharded.local_shard import LocalShard, is_sharded
from laconic.worker import Group


def clip_grad_norm_(optimizer: optim.Optimizer, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clip the norm of the gradients this optimizer will apply, and return the norm before clipping.

    After backward of a plain sentence this is `torch.nn.utils.clip_grad_norm_` of the averaged gradients. For rules
    with local steps the worker's own gradient is clipped, which is what its local step applies. Where gradients of
    several steps are summed (`accumulate`), only the sum that is applied is clipped: in the steps before, nothing is.
    With a schedule whose messages arrive in the next forward pass, this waits for them. Where the model is sharded or
    cut among devices, the norm is that of the whole gradient, the same on all workers that share the model.

    - `optimizer`: what `laconic.distribute` returned.
    - `max_norm`: the largest norm that gradients may have afterwards.
    - `norm_type`: the order of the norm, which may be `inf`.
    """
    if not isinstance(optimizer, DistributedOptimizer) and rival_of(optimizer) is None:
        raise ContractError("laconic.clip_grad_norm_ takes the optimizer that distribute() returned")
    if isinstance(optimizer, DistributedOptimizer):
        optimizer.session.deferred_step.settle()  # a norm needs all gradients: nothing is deferred in this step
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    accumulates = isinstance(optimizer, DistributedOptimizer) and optimizer.session.gradients.only_accumulates
    if isinstance(optimizer, DistributedOptimizer) and optimizer.session.cuts:
        norm = _norm_of_parts(optimizer.session, parameters, norm_type)
        if not accumulates:
            for kind in (True, False):  # torch scales sharded and plain gradients in calls of their own
                nn.utils.clip_grads_with_norm_([p for p in parameters if is_sharded(p) is kind], max_norm, norm)
        return norm
    if accumulates:
        return _whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type))
    return _whole(nn.utils.clip_grad_norm_(parameters, max_norm, norm_type))


def _norm_of_parts(session: Session, parameters: Sequence[Tensor], norm_type: float) -> Tensor:
    """Return the norm of the gradients of a model that is cut: each part counts once, whoever has it."""
    names = {id(parameter): name for name, parameter in session.model.named_parameters()}
    parts: dict[tuple[Group, ...], list[Tensor]] = {}
    for parameter in parameters:
        gradients = parts.setdefault(session.cuts.among.get(names[id(parameter)], ()), [])
        own = LocalShard.of(parameter).grad if is_sharded(parameter) else parameter.grad
        gradients += [] if own is None else [own]
    norms = [
        _among(groups, nn.utils.get_total_norm(gradients, norm_type), norm_type) for groups, gradients in parts.items()
    ]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return total


def _among(groups: Sequence[Group], norm: Tensor, norm_type: float) -> Tensor:
    """Return the norm of tensors of which each member of these groups has a part, from the norm of this one's."""
    for group in groups:
        norms = group.all_gather(norm.reshape(1), control=1.0).wait()
        norm = torch.linalg.vector_norm(norms.reshape(-1), norm_type)
    return norm


def _whole(norm: Any) -> Tensor:
    """Return a norm as a plain tensor; that of shards is one number, and a sharded tensor."""
    return norm.full_tensor() if is_sharded(norm) else norm  # type: ignore[no-any-return]
