"""Checkpoints that hold everything a run needs to continue: every rank's memory, random states and data positions.

A checkpoint is a folder `step-000000120-0/` of files `rank-N.pt`, new for each call, and beside it a file `latest` that
names the newest complete one and moves only after every rank has written. So a killed run leaves the previous
checkpoint intact.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim

from laconic.errors import ContractError, Disagreement
from laconic.files import replacing
from laconic.runtime.handed_over import refuse_rivals
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.runtime.session import Session
from laconic.values.run_config import RunConfig

_FORMAT = 1
_NAME = re.compile(r"step-\d{9}-\d+")


def checkpoint(path: str | os.PathLike[str], model: nn.Module, optimizer: optim.Optimizer, **extra: Any) -> Path:
    """Save this run so that `resume` continues it, and return the folder written. Every rank calls this.

    Extra objects with a `state_dict` (scheduler, scaler, `ShardSampler`) are saved by it; other values as they are
    (numbers, text, tensors, lists and dicts of these).
    """
    session = _session(optimizer, "checkpoint")
    root = Path(path)
    group = session.group
    if not session.collective:
        return _checkpoint_beside_servers(root, session, optimizer, extra)
    folder = root / f"step-{session.steps:09d}-{_unused(root, session)}"
    folder.mkdir(parents=True, exist_ok=True)
    content = _content(session, extra)
    if group.rank == 0 or session.replicas_differ:
        content["model"] = model.state_dict()
        content["optimizer"] = optimizer.base.state_dict()  # type: ignore[attr-defined]
    _write(folder / f"rank-{group.rank}.pt", content)
    group.barrier().wait()
    if group.rank == 0:
        with replacing(root / "latest") as beside:
            beside.write_text(folder.name)
        for old in root.iterdir():
            if _NAME.fullmatch(old.name) and old.name != folder.name:
                shutil.rmtree(old, ignore_errors=True)
    group.barrier().wait()
    return folder


def resume(
    path: str | os.PathLike[str], model: nn.Module, optimizer: optim.Optimizer, **objects: Any
) -> dict[str, Any]:
    """Continue from the last checkpoint under `path`; return the plain extras, or {} when there is no checkpoint yet.

    Objects with `load_state_dict` that were given to `checkpoint` under the same names are restored. When the number of
    workers has changed, the sum of the error memories is conserved.
    """
    session = _session(optimizer, "resume")
    if not session.collective:
        return _resume_beside_servers(Path(path), session, optimizer, objects)
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
    first = _read(folder / "rank-0.pt", device)
    if session.autotuner is None:
        _refuse_other_strategy(folder, first, session)
    same = first["workers"] == group.size
    mine = first if group.rank == 0 or not same else _read(folder / f"rank-{group.rank}.pt", device)
    session.load_state_dict(mine["session"])
    if session.replicas_differ and not same:
        raise ContractError(f"`{session.strategy}` keeps a model per worker: resume with {first['workers']} workers")
    holder = mine if "model" in mine else first
    model.load_state_dict(holder["model"])
    optimizer.base.load_state_dict(holder["optimizer"])  # type: ignore[attr-defined]
    if same:
        _set_random_states(mine["random"])
    else:
        everyone = [_read(folder / f"rank-{r}.pt", device)["session"] for r in range(first["workers"])]
        session.redistribute_state(everyone)
    return _restore_extras(folder, mine, objects)


def _content(session: Session, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "workers": session.group.size,
        "session": session.state_dict(),
        "random": _random_states(),
        "extra": {k: v.state_dict() if hasattr(v, "state_dict") else _plain(k, v) for k, v in extra.items()},
    }


def _checkpoint_beside_servers(
    root: Path, session: Session, optimizer: optim.Optimizer, extra: Mapping[str, Any]
) -> Path:
    """Save what this worker alone has, once the servers hold its updates on disk.

    Workers of servers do not wait for each other, so each has a file of its own, which it replaces.
    """
    content = _content(session, extra)
    session.worker.make_durable()  # type: ignore[attr-defined]  # `_session` has refused all other workers
    content["model"] = session.model.state_dict()
    content["optimizer"] = optimizer.base.state_dict()  # type: ignore[attr-defined]
    root.mkdir(parents=True, exist_ok=True)
    _write(root / f"rank-{session.group.rank}.pt", content)
    return root


def _resume_beside_servers(
    root: Path, session: Session, optimizer: optim.Optimizer, objects: Mapping[str, Any]
) -> dict[str, Any]:
    """Restore what this worker alone had; model and optimizer of the servers are where their snapshots left them."""
    file, config = root / f"rank-{session.group.rank}.pt", RunConfig.current()
    if not file.exists():
        return {}
    if not config.resume and not config.life:
        raise ContractError(
            f"{file} belongs to a run whose servers this one does not continue: start it with `laconic run --resume` "
            f"and the --folder of that run, or remove {root} to begin anew"
        )
    content = _read(file, session.parameters.device)
    _refuse_other_strategy(file, content, session)
    session.load_state_dict(content["session"])
    own = content["model"]
    if not session.replicas_differ:  # the servers' values, which the parameters hold since distribute(), are newer
        own = {**own, **{name: p.detach() for name, p in session.model.named_parameters()}}
    session.model.load_state_dict(own)
    optimizer.base.load_state_dict(content["optimizer"])  # type: ignore[attr-defined]
    _set_random_states(content["random"])
    return _restore_extras(file, content, objects)


def _refuse_other_strategy(where: Path, content: Mapping[str, Any], session: Session) -> None:
    if content["session"]["strategy"] != str(session.strategy):
        raise ContractError(
            f"{where} was written by `{content['session']['strategy']}`, this run is `{session.strategy}`: its memory "
            "means nothing here. Resume with the same strategy, or load the model's state_dict alone"
        )


def _restore_extras(where: Path, content: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    extras = dict(content["extra"])
    for name, thing in objects.items():
        if name not in extras:
            raise ContractError(f"{where} holds no {name!r}; it has {', '.join(extras) or 'no extras'}")
        thing.load_state_dict(extras.pop(name))
    return extras


def _session(optimizer: optim.Optimizer, verb: str) -> Session:
    refuse_rivals(optimizer, verb)
    if not isinstance(optimizer, DistributedOptimizer):
        raise ContractError(f"laconic.{verb} takes the optimizer that laconic.distribute returned")
    if not optimizer.session.collective and not getattr(optimizer.session.worker, "is_server_only", False):
        raise ContractError(
            f"`{optimizer.session.strategy}` keeps model and optimizer on servers that live in the workers: start it "
            "with --servers, whose state is saved with the run; or call laconic.finish(model, optimizer), then save "
            "model.state_dict() on rank 0"
        )
    return optimizer.session


def _unused(root: Path, session: Session) -> int:
    """Return a number that no earlier checkpoint of this step has, chosen by rank 0 and the same on every rank."""
    used = [int(p.name.split("-")[2]) for p in root.glob(f"step-{session.steps:09d}-*") if _NAME.fullmatch(p.name)]
    choice = torch.tensor([max(used, default=-1) + 1], device=session.parameters.device)
    return int(session.group.broadcast(choice, control=1.0).wait())


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
    pointer = root / "latest"
    return root / pointer.read_text().strip() if pointer.exists() else None


def _write(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as beside, beside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    if not path.exists():
        raise ContractError(f"the checkpoint has no {path}: every rank's file must be reachable from every machine")
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    if content.get("format") != _FORMAT:
        raise ContractError(f"{path} has format {content.get('format')}, this version reads {_FORMAT}")
    return content


def _random_states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": [version, list(internal), gauss],
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"].cpu())
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
