"""Averaging of sparse gradients: they are gathered as (index, value), never made dense, and bypass compressors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laconic.architecture.base import Architecture
from laconic.runtime.in_flight import concurrently
from laconic.worker import Communication, GatherRagged, Group


def average_sparse(parameter: nn.Parameter, architecture: Architecture, group: Group) -> Communication[Tensor | None]:
    """Return the mean of one embedding's gradient over the group; None when no worker used a row."""
    gradient = parameter.grad
    if gradient is None:
        gradient = torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.int64, device=parameter.device),
            torch.empty(0, *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device),
            parameter.shape,
            check_invariants=False,
        )
    gradient = gradient.to_sparse(1) if gradient.layout == torch.strided else gradient
    local = gradient.coalesce()
    rows, values = local.indices()[0].contiguous(), (local.values() / group.size).contiguous()
    all_rows, all_values = yield from concurrently(
        [architecture.carry(GatherRagged(x), group) for x in (rows, values.view(-1))]
    )
    index = torch.cat(all_rows)
    if not index.numel():
        return None
    width = parameter.shape[1:].numel()
    value = torch.cat([v.view(-1, width) for v in all_values]).view(-1, *parameter.shape[1:])
    return torch.sparse_coo_tensor(index[None], value, parameter.shape, check_invariants=False).coalesce()
