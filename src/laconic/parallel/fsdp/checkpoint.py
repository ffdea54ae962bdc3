"""The model and the optimizer of a sharded training on disk: every shard once, readable on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from laconic.errors import ContractError

FOLDER = "sharded"
_READ = (RuntimeError, ValueError, KeyError, dcp.api.CheckpointException)


def save_shards(folder: Path, model: nn.Module, optimizer: optim.Optimizer, replica: int | None) -> None:
    """Write model and optimizer as PyTorch's distributed checkpoints do; every rank calls this. Where replicas differ,
    each is saved under its number."""
    dcp.save(_state(model, optimizer, replica), checkpoint_id=folder / FOLDER)


def load_shards(folder: Path, model: nn.Module, optimizer: optim.Optimizer, replica: int | None) -> None:
    """Read what `save_shards` wrote, on as many ranks or on others."""
    state = _state(model, optimizer, replica)
    try:
        dcp.load(state, checkpoint_id=folder / FOLDER)
    except _READ as error:
        why = " ".join(str(error).split())[:300]
        raise ContractError(
            f"{folder / FOLDER} is of another sharded model or optimizer than this run's: {why}"
        ) from None
    (training,) = state.values()
    set_state_dict(model, optimizer, model_state_dict=training["model"], optim_state_dict=training["optimizer"])


def _state(model: nn.Module, optimizer: optim.Optimizer, replica: int | None) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"training" if replica is None else f"replica-{replica}": {"model": weights, "optimizer": moments}}
