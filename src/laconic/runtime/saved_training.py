"""What is saved of a training, whatever holds it: each worker's part, and how a run continues from it.

A part holds the worker's own memory, random states and extras. The model and the optimizer are in the first worker's
part, and in every part where workers have models of their own or parts of one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn, optim

from laconic.compression.optional import takes_of
from laconic.errors import ContractError
from laconic.files import replacing
from laconic.runtime.handed_over import refuse_rivals
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.runtime.random_states import random_states, set_random_states
from laconic.runtime.session import Session
from laconic.runtime.sharded.local_state import local_state, model_state, optimizer_state
from laconic.strategy import Sentence, Strategy

Part = dict[str, Any]

FORMAT = 2
_KEYS = {"format", "workers", "replicas_differ", "session", "random", "extra"}


def session_of(optimizer: optim.Optimizer, verb: str, beside_servers: bool = False) -> Session:
    """Return the session of an optimizer that `distribute` returned; refuse others, and strategies with a server, but
    for `beside_servers` that processes of their own host: these save themselves with the run."""
    refuse_rivals(optimizer, verb)
    if not isinstance(optimizer, DistributedOptimizer):
        raise ContractError(f"laconic.{verb} takes the optimizer that laconic.distribute returned")
    apart = beside_servers and getattr(optimizer.session.worker, "is_server_only", False)
    if not optimizer.session.arrangement.collective and not apart:
        raise ContractError(
            f"`{optimizer.session.strategy}` keeps model and optimizer on servers: start it with --servers, whose "
            "state is saved with the run, and call laconic.checkpoint; or call laconic.finish(model, optimizer), then "
            "save model.state_dict() on rank 0"
        )
    return optimizer.session


def own_part(session: Session, model: nn.Module, optimizer: optim.Optimizer, extra: Mapping[str, Any]) -> Part:
    """Return this worker's part. Every worker calls this: communications in flight are completed."""
    part: Part = {
        "format": FORMAT,
        "workers": session.group.size,
        "session": session.state_dict(),
        "replicas_differ": session.arrangement.replicas_differ,
        "random": random_states(),
        "extra": extra,
    }
    if session.cuts:
        state = {"model": model.state_dict(), "optimizer": optimizer.base.state_dict()}  # type: ignore[attr-defined]
        part |= {"cut": True, **local_state(state)}
    elif not session.saves_beside and (session.group.rank == 0 or session.arrangement.replicas_differ):
        part |= {"model": model.state_dict(), "optimizer": optimizer.base.state_dict()}  # type: ignore[attr-defined]
    return part


def read_part(file: IO[bytes], where: object, device: torch.device) -> Part:
    """Return the part that a file holds; whatever else it holds is refused in a sentence."""
    try:
        part = torch.load(file, map_location=device, weights_only=True)
    except Exception:  # torch has many, some of which advise to run whatever the file contains
        raise ContractError(
            f"{where} cannot be read as a checkpoint: it is empty, cut short, or was not written by laconic. Resume "
            "from another checkpoint, or remove this one to start afresh"
        ) from None
    if not isinstance(part, dict) or "format" not in part:
        raise ContractError(f"{where} is no checkpoint of laconic: give the folder that laconic.checkpoint wrote to")
    if part["format"] != FORMAT:
        raise ContractError(f"{where} has format {part['format']}, this version reads {FORMAT}")
    if missing := sorted(_KEYS - part.keys()):
        raise ContractError(f"{where} is an incomplete checkpoint, without {', '.join(missing)}: resume from another")
    return part


def read_file(path: Path, device: torch.device) -> Part:
    """Return the part that the file at this path holds."""
    if not path.exists():
        raise ContractError(f"the checkpoint has no {path}: every rank's file must be reachable from every machine")
    with path.open("rb") as file:
        return read_part(file, path, device)


def write_part(path: Path, part: Part) -> None:
    """Write a part, whole or not at all."""
    with replacing(path) as beside, beside.open("wb") as file:
        try:
            torch.save(part, file)
        except RuntimeError as error:  # torch's writer hides what the system said, and says where in its source
            raise OSError(f"torch could not save it: {str(error).splitlines()[0][-60:]}") from error
        file.flush()
        os.fsync(file.fileno())


def restore(
    session: Session,
    model: nn.Module,
    optimizer: optim.Optimizer,
    mine: Part,
    part_of: Callable[[int], Part],
    where: object,
) -> None:
    """Continue from a saved training. `mine` is this worker's part, or the first worker's where the number of workers
    has changed; `part_of` returns that of any saved worker, and `where` names the checkpoint in messages."""
    session.deferred_step.settle()  # what is in flight belongs to the parameters of before
    same = mine["workers"] == session.group.size and session.fits(mine["session"])
    before = mine["session"]["strategy"]
    if bool(session.cuts) != bool(mine.get("cut")) or (session.cuts and (not same or before != str(session.strategy))):
        raise ContractError(
            f"{where} holds the parts of a model that is cut among devices, or this run's is and it does not: resume "
            f"with {mine['workers']} workers, cut as they were, by `{before}`"
        )
    if session.autotuner is None and before != str(session.strategy):
        _take_over(session, model, optimizer, mine, part_of, where)
    elif mine["replicas_differ"] and not same:
        raise ContractError(
            f"`{before}` keeps a model per worker: resume with {mine['workers']} workers, arranged as they were"
        )
    else:
        session.load_state_dict(mine["session"])
        if session.saves_beside:
            assert isinstance(where, Path)
            session.load_beside(where)
        else:
            weights, base = mine if "model" in mine else part_of(0), optimizer.base  # type: ignore[attr-defined]
            _load(model, model_state(model, weights["model"]), where)
            _load(base, optimizer_state(base, weights["optimizer"]), where)
        if not same:
            session.redistribute_state([part_of(r)["session"] for r in range(mine["workers"])])
    if same:
        set_random_states(mine["random"])


def restore_extras(extra: Part, objects: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Let each object load what was saved under its name, and return the rest."""
    rest = dict(extra)
    for name, thing in objects.items():
        if name not in rest:
            raise ContractError(f"{where} holds no {name!r}; it has {', '.join(rest) or 'no extras'}")
        thing.load_state_dict(rest.pop(name))
    return rest


def _take_over(
    session: Session,
    model: nn.Module,
    optimizer: optim.Optimizer,
    mine: Part,
    part_of: Callable[[int], Part],
    where: object,
) -> None:
    """Continue what another strategy began: model, optimizer and step are taken over; the memory of its words means
    nothing to others, so it is dropped, and this strategy's begins afresh."""
    base: optim.Optimizer = optimizer.base  # type: ignore[attr-defined]
    taken = _taken_settings(Strategy.parse(mine["session"]["strategy"]))  # saved as zero, while a compressor had them
    kept = [{name: group[name] for name in taken if name in group} for group in base.param_groups]
    if session.saves_beside:
        assert isinstance(where, Path)
        session.load_beside(where)
    else:
        parts = [part_of(r) for r in range(mine["workers"])] if mine["replicas_differ"] else []
        weights = parts[0] if parts else mine if "model" in mine else part_of(0)
        _load(model, _mean_of([part["model"] for part in parts]) if parts else weights["model"], where)
        _load(base, weights["optimizer"], where)
    for group, settings in zip(base.param_groups, kept, strict=True):
        group.update(settings)
    session.take_over(mine["session"]["steps"])
    if session.worker.rank == 0:
        tiers = [tier for found in mine["session"]["sections"].values() for tier in found]
        remarks = ["model, optimizer and step are taken over"]
        remarks += ["the mean of the workers' models goes on"] if mine["replicas_differ"] else []
        remarks += ["the memory in it is dropped"] if any(tier["memory"] or tier["sync"] for tier in tiers) else []
        remarks += ["this strategy's memory begins afresh"] if session.arrangement.has_memory else []
        print(
            f"laconic: {where} was written by `{mine['session']['strategy']}`, this run is `{session.strategy}`: "
            f"{'; '.join(remarks)}",
            file=sys.stderr,
        )


def _load(thing: nn.Module | optim.Optimizer, state: Any, where: object) -> None:
    try:
        thing.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError) as error:
        what = "model" if isinstance(thing, nn.Module) else "optimizer"
        why = " ".join(str(error).split())
        raise ContractError(f"{where} is of another {what} than this run's {type(thing).__name__}: {why}") from None


def _mean_of(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of workers' models; numbers that are not floating, such as counts, are the first worker's."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }


def _taken_settings(strategy: Strategy) -> set[str]:
    """Return the settings of the optimizer that a strategy's compressors take over."""
    if isinstance(strategy, Sentence):
        return set(takes_of(strategy.compressor))
    return {name for part in strategy.parts_within for name in _taken_settings(part)}
