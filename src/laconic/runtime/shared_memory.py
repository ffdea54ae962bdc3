"""Memory that several processes of one host share: the architecture `shared` keeps the parameters in it.

A file of the host's shared memory is mapped by all of them and then unlinked, so that nothing is left behind however a
run ends.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from laconic.errors import ContractError
from laconic.worker import Group, Worker

_TOKEN_BYTES = 16


def map_shared_tensor(group: Group, numel: int, dtype: torch.dtype) -> Tensor:
    """Return zeros that all members of a group read and write; each member calls this, in the same order."""
    token = torch.tensor(list(secrets.token_bytes(_TOKEN_BYTES)), dtype=torch.uint8)
    path = _folder() / f"laconic-{bytes(token.tolist()).hex()}"
    if group.rank == 0:
        path.touch(mode=0o600, exist_ok=False)
        with path.open("r+b") as file:
            file.truncate(numel * dtype.itemsize)
    token = group.broadcast(token, control=1.0).wait()
    path = _folder() / f"laconic-{bytes(token.tolist()).hex()}"
    found = path.exists()
    memory = torch.from_file(str(path), shared=True, size=numel, dtype=dtype) if found else torch.empty(0, dtype=dtype)
    missing = torch.tensor([0.0 if found else 1.0])
    lost = float(group.all_reduce(missing, control=1.0).wait())  # also a barrier: all members have mapped the file
    if group.rank == 0:
        path.unlink()
    if lost:
        raise ContractError(
            f"{lost:.0f} of {group.size} workers do not see rank 0's memory: `shared` needs all on one machine; "
            "between machines choose allreduce or ps"
        )
    return memory


def share(worker: Worker, group: Group, parameters: Sequence[Tensor]) -> None:
    """Move parameters that are equal on all workers into one memory: from now on every worker sees each write."""
    for parameter in parameters:
        if parameter.device.type != "cpu":
            raise ContractError(f"`shared` is for parameters in the CPU's memory, not on {parameter.device}")
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        alike = [p for p in parameters if p.dtype == dtype]
        memory = worker.shared_memory(group, sum(p.numel() for p in alike), dtype)
        for parameter, place in zip(alike, memory.split([p.numel() for p in alike]), strict=True):
            place.copy_(parameter.data.reshape(-1))
            parameter.data = place.view(parameter.shape)
    group.barrier().wait()


def _folder() -> Path:
    in_ram = Path("/dev/shm")
    return in_ram if in_ram.is_dir() else Path(tempfile.gettempdir())
