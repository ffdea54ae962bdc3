"""`laconic.TrainingState`: a training as a `Stateful` of `torch.distributed.checkpoint`."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn, optim

from laconic.errors import ContractError
from laconic.runtime.saved_training import Part, own_part, read_part, restore, restore_extras, session_of

_HERE = "this TrainingState"


class TrainingState:
    """A model, its optimizer and what its strategy remembers, for `torch.distributed.checkpoint`.

        state = {"training": laconic.TrainingState(model, optimizer, scheduler=scheduler)}
        torch.distributed.checkpoint.save(state, checkpoint_id=folder)      # and `load` in the same way

    The model is saved tensor by tensor, so that other programs can read it; the optimizer, and each worker's own
    memory, random states and extras, as one value each. Every worker takes part in saving and in loading. As many
    workers load as have saved: `laconic.checkpoint` and `laconic.resume` also continue with another number.

    - `model`, `optimizer`: what `laconic.distribute` returned.
    - `extra`: objects with `state_dict` and `load_state_dict` that are saved with each worker: a scheduler, a
      `ShardSampler`.
    """

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, **extra: Any) -> None:
        for name, thing in extra.items():
            if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
                raise ContractError(
                    f"TrainingState({name}=…) takes an object with state_dict() and load_state_dict(), not "
                    f"{type(thing).__name__}: give plain values to torch.distributed.checkpoint beside it"
                )
        self._model, self._optimizer, self._extra = model, optimizer, extra
        self._session = session_of(optimizer, "TrainingState")
        if self._session.saves_beside:
            raise ContractError(
                "a TrainingState holds whole models, and this one is sharded: save it with laconic.checkpoint, which "
                "writes each shard once and is read by laconic.resume on any number of workers"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the model's tensors, the optimizer's state, and this worker's part under a name of its own."""
        extra = {name: thing.state_dict() for name, thing in self._extra.items()}
        part = own_part(self._session, self._model, self._optimizer, extra)
        if not self._session.arrangement.replicas_differ:  # it is the same on all workers: once is enough
            part.pop("model", None)
            part.pop("optimizer", None)
        return {
            "model": self._model.state_dict(),
            "optimizer": _to_bytes(self._optimizer.base.state_dict()),  # type: ignore[attr-defined]
            self._name: _to_bytes(part),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned on the worker of the same rank.

        - `state_dict`: the dictionary to read.
        """
        device = self._session.parameters.device
        if self._name not in state_dict:
            raise ContractError(f"{_HERE} holds no part for {self._name}: load with as many workers as have saved")
        mine = read_part(io.BytesIO(state_dict[self._name]), _HERE, device)
        if mine["workers"] != self._session.group.size:
            raise ContractError(
                f"{_HERE} was saved by {mine['workers']} workers and is loaded by {self._session.group.size}: start as "
                "many, or save with laconic.checkpoint, from which any number resumes"
            )
        if "model" not in mine:
            optimizer = torch.load(io.BytesIO(state_dict["optimizer"]), map_location=device, weights_only=True)
            mine |= {"model": state_dict["model"], "optimizer": optimizer}
        restore(self._session, self._model, self._optimizer, mine, self._part_of_another, _HERE)
        restore_extras(mine["extra"], self._extra, _HERE)

    @property
    def _name(self) -> str:
        return f"rank-{self._session.group.rank}"

    def _part_of_another(self, rank: int) -> Part:
        raise ContractError(
            "another strategy than the one that saved goes on from the mean of the workers' models, and each worker "
            f"has only its own here, not that of rank {rank}: call laconic.finish(model, optimizer) before saving and "
            "load the model's part alone, or save with laconic.checkpoint"
        )


def _to_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
