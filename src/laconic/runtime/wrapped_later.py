"""Refuse that DDP wraps a distributed model: both would average its gradients, and local steps would be void.

DDP changes no behaviour that a model could notice from inside, but it registers the model as its submodule while it is
being made, and torch lets others watch registrations. So the error comes from the line that wraps the model, on every
rank, before anything is sent.
"""

from __future__ import annotations

import weakref

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from laconic.errors import ContractError

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")

_distributed: list[weakref.ref[nn.Module]] = []
_watching = False


def refuse_wrapping(model: nn.Module) -> None:
    """Refuse from now on that DDP and its kin wrap this model, a part of it, or a module that holds its parameters."""
    global _watching
    _distributed[:] = [known for known in _distributed if known() is not None]
    _distributed.append(weakref.ref(model))
    if not _watching:
        register_module_module_registration_hook(_before_registration)
        _watching = True


def allow_wrapping(model: nn.Module) -> None:
    """Let this model be wrapped again: it is distributed no more."""
    _distributed[:] = [known for known in _distributed if known() is not model]


def _before_registration(owner: nn.Module, name: str, submodule: nn.Module | None) -> None:
    """Look at every submodule that any module is given; only wrappers are of interest."""
    wrapper = next((parent.__name__ for parent in type(owner).__mro__ if parent.__name__ in _WRAPPERS), None)
    if wrapper is None or submodule is None:
        return
    wrapped = {id(p) for p in submodule.parameters() if p.requires_grad}
    models = [model for known in _distributed if (model := known()) is not None]
    if any(id(p) in wrapped for model in models for p in model.parameters()):
        raise ContractError(
            f"{wrapper} is about to wrap a model that laconic.distribute() has distributed: gradients would be sent "
            "twice, and local steps would be averaged all the same. Do not wrap it (with accelerate: prepare the "
            "optimizer and the loader, not the model), or call laconic.undistribute(model, optimizer) first"
        )
