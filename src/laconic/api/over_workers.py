"""`laconic.mean` and `laconic.gather`: values of all workers, as an evaluation needs them.

Both engines carry them in the same way, as bytes in rank order, so results have the same bits. The ledger counts them
as control data, not as a strategy's payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.errors import ContractError
from laconic.real.connect import connect
from laconic.real.group import RealGroup
from laconic.runtime.agreement import agree
from laconic.runtime.own_device import device
from laconic.worker import Group


def mean(value: Any) -> Any:
    """Return the plain mean of a value over all workers, the same on each. Every worker calls this.

    Where workers have counted different numbers of samples, take the mean of sums and counts and divide those:
    `total = laconic.mean({"correct": correct, "samples": samples})`.

    - `value`: a number, a tensor, or a dict of these (and of dicts), with the same names and shapes on every worker.
      Numbers and tensors of whole numbers become floating ones; tensors come back detached, on the device they were on.
    """
    rows = _rows(value, "mean")
    return _rebuilt(value, {name: _mean(tensors) for name, tensors in rows.items()}, float)


def gather(value: Any) -> list[Any]:
    """Return every worker's value, in a list by rank, the same on each. Every worker calls this.

    - `value`: a number, a tensor, or a dict of these (and of dicts), with the same names and shapes on every worker.
      Tensors come back detached, on the device they were on.
    """
    rows = _rows(value, "gather")
    size = connect().size
    return [_rebuilt(value, {name: tensors[rank] for name, tensors in rows.items()}, None) for rank in range(size)]


def _rows(value: Any, verb: str) -> dict[str, list[Tensor]]:
    """Return every worker's tensors by rank, for each name within the value."""
    leaves = _leaves(value, verb)
    group = connect().world
    where = _device_of(group)
    agree({"values": {name or "itself": f"{x.dtype}{list(x.shape)}" for name, x in leaves.items()}}, group, where)
    raw = [x.contiguous().reshape(-1).view(torch.uint8).to(where) for x in leaves.values()]
    lengths = [x.numel() for x in raw]
    if not sum(lengths):
        return {name: [x.clone() for _ in range(group.size)] for name, x in leaves.items()}
    everyone = group.all_gather(torch.cat(raw), control=1.0).wait()
    columns = everyone.split(lengths, dim=1)
    return {
        name: [row.clone().view(x.dtype).view(x.shape).to(x.device) for row in column]
        for (name, x), column in zip(leaves.items(), columns, strict=True)
    }


def _leaves(value: Any, verb: str, name: str = "") -> dict[str, Tensor]:
    """Return the numbers and tensors within a value as tensors, by name and in the same order on every worker."""
    if isinstance(value, Mapping):
        return {
            k: x for key in sorted(value, key=str) for k, x in _leaves(value[key], verb, _within(name, key)).items()
        }
    if isinstance(value, Tensor):
        return {name: value.detach()}
    if isinstance(value, int):
        return {name: torch.tensor(value, dtype=torch.int64)}
    if isinstance(value, SupportsFloat):
        return {name: torch.tensor(float(value), dtype=torch.float64)}
    raise ContractError(f"laconic.{verb} takes numbers, tensors and dicts of these, not {type(value).__name__}")


def _rebuilt(value: Any, found: Mapping[str, Tensor], number: type | None, name: str = "") -> Any:
    """Return what was found, in the shape of the value; `number` is the type of its numbers, None: each its own."""
    if isinstance(value, Mapping):
        return {key: _rebuilt(inner, found, number, _within(name, key)) for key, inner in value.items()}
    if isinstance(value, Tensor):
        return found[name]
    kind = number or (type(value) if isinstance(value, int) else float)
    return kind(found[name].item())


def _within(name: str, key: object) -> str:
    return f"{name}/{key}" if name else str(key)


def _mean(tensors: list[Tensor]) -> Tensor:
    dtype = tensors[0].dtype
    kept = dtype.is_floating_point or dtype.is_complex
    exact = torch.complex128 if dtype.is_complex else torch.float64
    return torch.stack(tensors).to(exact).mean(0).to(dtype if kept else torch.get_default_dtype())


def _device_of(group: Group) -> torch.device:
    """Return the device whose tensors the group can send: the CPU, unless it has NCCL alone."""
    only_nccl = isinstance(group, RealGroup) and dist.get_backend(group.process_group) == "nccl"
    return device() if only_nccl else torch.device("cpu")
