"""The state of a model or optimizer with this worker's parts in place of sharded tensors, as a file can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn, optim

from laconic.runtime.sharded.local_shard import is_sharded, local_part, sharded_like


def local_state(state: Any) -> Any:
    """Return nested state with this worker's parts of sharded tensors."""
    if isinstance(state, Tensor):
        return local_part(state)
    if isinstance(state, Mapping):
        return {key: local_state(value) for key, value in state.items()}
    return [local_state(value) for value in state] if isinstance(state, list) else state


def model_state(model: nn.Module, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `local_state` made of a model's state as that model loads it."""
    present = model.state_dict()
    return {name: _sharded(present.get(name), part) for name, part in parts.items()}


def optimizer_state(optimizer: optim.Optimizer, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `local_state` made of an optimizer's state as that optimizer loads it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbered = dict(zip([i for group in parts["param_groups"] for i in group["params"]], parameters, strict=False))
    state = {
        i: {name: _sharded(numbered.get(i), value) for name, value in kept.items()}
        for i, kept in parts["state"].items()
    }
    return {**parts, "state": state}


def _sharded(like: Any, part: Any) -> Any:
    """Return a part as a tensor that is sharded like another, where it has the shape of that one's own part."""
    if not isinstance(part, Tensor) or not isinstance(like, Tensor) or not is_sharded(like):
        return part
    return sharded_like(like, part) if part.shape == local_part(like).shape else part
