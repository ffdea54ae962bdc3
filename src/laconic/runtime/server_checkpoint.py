"""Checkpoints of workers whose model and optimizer are on servers of their own, which save themselves with the run.

Such workers do not wait for each other, so each has a file of its own, which it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import optim

from laconic.errors import ContractError
from laconic.files import make_folder
from laconic.runtime.random_states import set_random_states
from laconic.runtime.saved_training import own_part, read_file, restore_extras, write_part
from laconic.runtime.session import Session
from laconic.values.run_config import RunConfig


def checkpoint_beside_servers(
    root: Path, session: Session, optimizer: optim.Optimizer, extra: Mapping[str, Any]
) -> Path:
    """Save what this worker alone has, once the servers hold its updates on disk."""
    part = own_part(session, session.model, optimizer, extra)
    session.worker.make_durable()  # type: ignore[attr-defined]  # `session_of` has refused all other workers
    part["model"] = session.model.state_dict()
    part["optimizer"] = optimizer.base.state_dict()  # type: ignore[attr-defined]
    make_folder(root)
    write_part(root / f"rank-{session.group.rank}.pt", part)
    return root


def resume_beside_servers(
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
    part = read_file(file, session.parameters.device)
    if part["session"]["strategy"] != str(session.strategy):
        raise ContractError(
            f"{file} was written by `{part['session']['strategy']}`, this run is `{session.strategy}`, whose servers "
            "hold something else: resume with the same strategy, or load the model's state_dict alone"
        )
    session.load_state_dict(part["session"])
    own = part["model"]
    if (
        not session.arrangement.replicas_differ
    ):  # the servers' values, which the parameters hold since distribute(), are newer
        own = {**own, **{name: p.detach() for name, p in session.model.named_parameters()}}
    session.model.load_state_dict(own)
    optimizer.base.load_state_dict(part["optimizer"])  # type: ignore[attr-defined]
    set_random_states(part["random"])
    return restore_extras(part["extra"], objects, file)
