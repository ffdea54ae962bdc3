"""Checkpoints that hold everything a run needs to continue: every rank's memory, random states and data positions.

A checkpoint is a folder `step-000000120-0/` of files `rank-N.pt`, new for each call, and beside it a file `latest` that
names the newest complete one and moves only after every rank has written. So a killed run leaves the previous
checkpoint intact.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim

from laconic.errors import ContractError, Disagreement
from laconic.files import make_folder, write_text
from laconic.runtime.saved_training import (
    Part,
    own_part,
    read_file,
    restore,
    restore_extras,
    session_of,
    write_part,
)
from laconic.runtime.server_checkpoint import checkpoint_beside_servers, resume_beside_servers
from laconic.runtime.session import Session

_NAME = re.compile(r"step-\d{9}-\d+")


def checkpoint(path: str | os.PathLike[str], model: nn.Module, optimizer: optim.Optimizer, **extra: Any) -> Path:
    """Save this run so that `resume` continues it, and return the folder written. Every rank calls this.

    - `path`: the folder that holds this run's checkpoints; it is made where it is missing.
    - `model`, `optimizer`: what `laconic.distribute` returned.
    - `extra`: objects with a `state_dict` (scheduler, scaler, `ShardSampler`) are saved by it; other values as they are
      (numbers, text, tensors, lists and dicts of these).
    """
    session = session_of(optimizer, "checkpoint", beside_servers=True)
    _refuse_parts_elsewhere(session)
    root = Path(path)
    group = session.group
    if not session.arrangement.collective:
        return checkpoint_beside_servers(root, session, optimizer, _extras(extra))
    folder = root / f"step-{session.steps:09d}-{_unused(root, session)}"
    make_folder(folder)
    write_part(folder / f"rank-{group.rank}.pt", own_part(session, model, optimizer, _extras(extra)))
    session.save_beside(folder)
    group.barrier().wait()
    if group.rank == 0:
        write_text(root / "latest", folder.name)
        for old in root.iterdir():
            if _NAME.fullmatch(old.name) and old.name != folder.name:
                shutil.rmtree(old, ignore_errors=True)
    group.barrier().wait()
    return folder


def resume(
    path: str | os.PathLike[str], model: nn.Module, optimizer: optim.Optimizer, **objects: Any
) -> dict[str, Any]:
    """Continue from the last checkpoint under `path`; return the plain extras, or {} when there is no checkpoint yet.

    When the number of workers has changed, the sum of the error memories is conserved. When the strategy has changed,
    model, optimizer and step are taken over, the old strategy's memory is dropped and the new one's begins afresh,
    which rank 0 reports on the console. Every rank calls this.

    - `path`: the folder that was given to `laconic.checkpoint`.
    - `model`, `optimizer`: what `laconic.distribute` returned.
    - `objects`: objects with `load_state_dict` that were given to `checkpoint` under the same names: they are restored.
    """
    session = session_of(optimizer, "resume", beside_servers=True)
    _refuse_parts_elsewhere(session)
    if not session.arrangement.collective:
        return resume_beside_servers(Path(path), session, optimizer, objects)
    group, device = session.group, session.parameters.device
    folder = _latest(Path(path))
    step = -1 if folder is None else int(folder.name.split("-")[1])
    steps = group.all_gather(torch.tensor([step], device=device), control=1.0).wait().view(-1).tolist()
    if len(set(steps)) > 1:
        named = zip(group.ranks, steps, strict=True)
        found = ", ".join(f"rank {r}: {'none' if s < 0 else f'step {s}'}" for r, s in named)
        raise Disagreement(f"ranks see different checkpoints under {path} ({found}): put it on a shared file system")
    if folder is None:
        return {}
    mine = _read_own(folder, session)
    restore(session, model, optimizer, mine, lambda rank: read_file(folder / f"rank-{rank}.pt", device), folder)
    return restore_extras(mine["extra"], objects, folder)


def _refuse_parts_elsewhere(session: Session) -> None:
    """Refuse a model of which workers outside of this session have parts: nobody would know when all are saved."""
    members = set(session.group.ranks)
    if any(not members.issuperset(group.ranks) for group in session.cuts.groups):
        raise ContractError(
            "this model is cut among devices that its strategy does not span, so that no checkpoint would hold all of "
            "its parts: give distribute() the whole mesh and a tier for each of its dimensions, as in [bsp]@tp > "
            "[int8+ef]@dp, or save it with torch.distributed.checkpoint"
        )


def _unused(root: Path, session: Session) -> int:
    """Return a number that no earlier checkpoint of this step has, chosen by rank 0 and the same on every rank."""
    used = [int(p.name.split("-")[2]) for p in root.glob(f"step-{session.steps:09d}-*") if _NAME.fullmatch(p.name)]
    choice = torch.tensor([max(used, default=-1) + 1], device=session.parameters.device)
    return int(session.group.broadcast(choice, control=1.0).wait())


def _extras(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.state_dict() if hasattr(v, "state_dict") else _plain(k, v) for k, v in extra.items()}


def _plain(name: str, value: Any) -> Any:
    """Return a value that can be read back without running foreign code; others are refused now rather than at
    resume."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return type(value)(_plain(name, item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(name, item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.Tensor):
        return value
    raise ContractError(
        f"a checkpoint cannot hold {name}={type(value).__name__}: give numbers, text, tensors, lists or "
        "dicts of these, or an object with state_dict() and load_state_dict()"
    )


def _latest(root: Path) -> Path | None:
    """Return the folder of the newest complete checkpoint, or None where there is none yet."""
    pointer = root / "latest"
    if not pointer.exists():
        if root.is_file():
            raise ContractError(f"{root} is a file: give the folder that laconic.checkpoint wrote to")
        return None
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if not _NAME.fullmatch(name) or not (root / name).is_dir():
        raise ContractError(
            f"{pointer} names no checkpoint beside it: write the name of a folder of {root} into it, as "
            "step-000000120-0, or remove it to start afresh"
        )
    return root / name


def _read_own(folder: Path, session: Session) -> Part:
    """Return this worker's part, or the first worker's where the number of workers has changed. Where one worker cannot
    read its part, all raise: the others would wait for it in their first step."""
    group, device = session.group, session.parameters.device
    mine: Part | None = None
    error: ContractError | None = None
    try:
        mine = read_file(folder / "rank-0.pt", device)
        if group.rank > 0 and mine["workers"] == group.size:
            mine = read_file(folder / f"rank-{group.rank}.pt", device)
    except ContractError as refusal:
        error = refusal
    failed = torch.tensor([0.0 if error is None else 1.0], device=device)
    anyone = bool(group.all_reduce(failed, "max", control=1.0).wait())
    if error is not None:
        raise error
    if anyone or mine is None:
        raise Disagreement(f"another rank cannot read its part of {folder}, and says why in its log")
    return mine
