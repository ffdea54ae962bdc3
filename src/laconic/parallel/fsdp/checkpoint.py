"""The model and the optimizer of a sharded training on disk: every shard once, readable on any number of ranks.

What is written is a checkpoint of `torch.distributed.checkpoint`, which others can read. Its own `save` asks the
default process group who writes what, which virtual workers do not have: here workers tell each other through their
group.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from laconic.errors import ContractError
from laconic.worker import Group

FOLDER = "sharded"
_ALIKE = "training"  # the name of a model that all replicas share
_READ = (RuntimeError, ValueError, KeyError, OSError, EOFError, pickle.UnpicklingError, dcp.api.CheckpointException)


def save_shards(
    folder: Path, model: nn.Module, optimizer: optim.Optimizer, replica: int | None, group: Group, device: torch.device
) -> None:
    """Write model and optimizer as PyTorch's distributed checkpoints do; every rank of `group` calls this. Where
    replicas differ, each is saved under its number."""
    weights, moments = get_state_dict(model, optimizer)
    state = {_name(replica): {"model": weights, "optimizer": moments}}
    planner, writer = dcp.DefaultSavePlanner(), dcp.FileSystemWriter(folder / FOLDER)
    first = group.rank == 0
    planner.set_up_planner(state, storage_meta=writer.storage_meta(), is_coordinator=first)
    writer.set_up_storage_writer(first)
    mine = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan(_gathered(mine, group, device))  # the same on all, who writes what
    plan = writer.prepare_global_plan(plans)[group.rank]
    written = writer.write_data(planner.finish_plan(plan), planner)
    written.wait()
    results = _gathered(written.value(), group, device)
    if first:
        writer.finish(metadata, results)


def load_shards(folder: Path, model: nn.Module, optimizer: optim.Optimizer, replica: int | None) -> None:
    """Read what `save_shards` wrote, on as many ranks or on others. Where replicas differed in it and do not any more,
    the mean of their models is read, and the first one's optimizer."""
    where = folder / FOLDER
    try:
        saved = _saved_replicas(where)
        names = [_name(replica)] if _name(replica) in saved else saved
        weights, moments = get_state_dict(model, optimizer)
        found = [_read(where, name, weights, moments) for name in names]
    except _READ as error:
        why = " ".join(str(error).split())[:300]
        raise ContractError(f"{where} is of another sharded model or optimizer than this run's: {why}") from None
    mean = {name: _mean([one["model"][name] for one in found]) for name in weights}
    set_state_dict(model, optimizer, model_state_dict=mean, optim_state_dict=found[0]["optimizer"])


def _name(replica: int | None) -> str:
    return _ALIKE if replica is None else f"replica-{replica}"


def _saved_replicas(where: Path) -> list[str]:
    """Return the names under which a checkpoint holds models: one, or one for each replica."""
    names = {key.split(".")[0] for key in dcp.FileSystemReader(where).read_metadata().state_dict_metadata}
    return sorted(names, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])


def _read(where: Path, name: str, weights: dict[str, Any], moments: dict[str, Any]) -> dict[str, Any]:
    """Return one saved model and its optimizer, in the shapes and shards of these; nobody needs the other ranks."""
    state = {name: {"model": {key: _copied(value) for key, value in weights.items()}, "optimizer": _copied(moments)}}
    planner, reader = dcp.DefaultLoadPlanner(), dcp.FileSystemReader(where)
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    (plan,) = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    (plan,) = reader.prepare_global_plan([plan])
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return state[name]


def _copied(value: Any) -> Any:
    """Return a copy of nested state: what is read must not change the model before all of it is."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _mean(values: list[Any]) -> Any:
    """Return the mean of tensors of several replicas; the first where it is none, or counts."""
    first = values[0]
    if len(values) == 1 or not isinstance(first, Tensor) or not first.is_floating_point():
        return first
    return sum(values[1:], first) / len(values)


def _gathered(mine: Any, group: Group, device: torch.device) -> list[Any]:
    """Return an object of every rank: plans and results of PyTorch's checkpoints, which pickles them too."""
    raw = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8).to(device)
    lengths = group.all_gather(torch.tensor([raw.numel()], device=device), control=1.0).wait().view(-1).tolist()
    padded = torch.nn.functional.pad(raw, (0, max(lengths) - raw.numel()))
    rows: Iterable[Tensor] = group.all_gather(padded, control=1.0).wait().cpu()
    return [pickle.loads(row[:n].numpy().tobytes()) for row, n in zip(rows, lengths, strict=True)]
