"""What one shard holds: values, the optimizer that steps on them, and the clocks of its workers."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laconic.architecture.server.copy_buffers import Copies
from laconic.architecture.server.sharding import Range
from laconic.errors import ContractError
from laconic.values.tensor_spec import TensorSpec

Scalar = int | float | bool | list[float]


class Store:
    """The state of one shard of a model.

    `size` counts all workers, `group` says which of several servers of the whole model this is; `version` counts
    updates; `clocks` hold how many writes of each worker were received (its clock), for all workers that are expected
    until they are lost; `paused` are those among them that push no more, so that no rule waits for them; `memory`
    belongs to the sync rule. Tensors of one dtype lie in one piece of memory, so that they are sent as one.
    """

    def __init__(
        self,
        ranges: Sequence[Range],
        specs: Sequence[TensorSpec],
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
        size: int,
        group: int = 0,
        members: Sequence[int] | None = None,
    ) -> None:
        self.size, self.group = size, group
        self.ranges = ranges
        self.specs = [r.spec(specs) for r in ranges]
        self.flats = {
            dtype: torch.zeros(sum(s.numel for s in self.specs if s.dtype == dtype), dtype=dtype)
            for dtype in dict.fromkeys(s.dtype for s in self.specs)
        }
        self.values = [nn.Parameter(view) for view in self.views(list(self.flats.values()))]
        self.optimizer = _moved(optimizer, parameters, ranges, self.values)
        self.version = 0
        self.clocks = dict.fromkeys(range(size) if members is None else members, 0)
        self.paused: set[int] = set()
        self.scalars: dict[int, dict[str, Scalar]] = {}
        self.memory: dict[str, Any] = {}
        self.initialized = False
        self._copies = Copies()

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return views of one flat tensor per dtype: a tensor per range, in its own shape."""
        lengths = {d: [s.numel for s in self.specs if s.dtype == d] for d in self.flats}
        parts = {d: iter(flat.split(lengths[d])) for d, flat in zip(self.flats, flats, strict=True)}
        return [next(parts[s.dtype]).view(s.shape) for s in self.specs]

    def flattened(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return a tensor per range as one new flat tensor per dtype: the reverse of `views`."""
        pairs = list(zip(self.specs, tensors, strict=True))
        return [torch.cat([x.reshape(-1) for spec, x in pairs if spec.dtype == dtype]) for dtype in self.flats]

    def flat_copy(self) -> list[Tensor]:
        """Return a copy of the present values, one flat tensor per dtype."""
        return [self._copies.of(flat) for flat in self.flats.values()]

    @property
    def members(self) -> list[int]:
        """The workers whose pushes are expected."""
        return sorted(self.clocks.keys() - self.paused)

    @property
    def slowest(self) -> int:
        """The clock that all members have reached."""
        return min((self.clocks[member] for member in self.members), default=self.fastest)

    @property
    def fastest(self) -> int:
        return max(self.clocks.values(), default=0)

    def rate(self, worker: int) -> float:
        """Return the learning rate of the first parameter group that this worker sent."""
        return float(self.scalars.get(worker, {}).get("0.lr", self.optimizer.param_groups[0]["lr"]))  # type: ignore[arg-type]

    def apply(self, gradients: Sequence[Tensor], worker: int, rate: float = 1.0) -> None:
        """Take one step of the optimizer, with the settings this worker sent and `rate` times its learning rate."""
        if len(gradients) != len(self.values):
            raise ContractError(f"worker {worker} pushed {len(gradients)} gradients for {len(self.values)} ranges")
        for value, gradient in zip(self.values, gradients, strict=True):
            value.grad = gradient
        groups = self.optimizer.param_groups
        for name, scalar in self.scalars.get(worker, {}).items():
            index, _, key = name.partition(".")
            if key in groups[int(index)]:  # a rule may step with an optimizer of its own
                groups[int(index)][key] = tuple(scalar) if isinstance(scalar, list) else scalar
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * rate
        try:
            self.optimizer.step()
        finally:
            for group, own in zip(groups, rates, strict=True):
                group["lr"] = own
            for value in self.values:
                value.grad = None
        self.version += 1

    @torch.no_grad()
    def add(self, changes: Sequence[Tensor], weight: float = 1.0) -> None:
        """Add these tensors to the values, times `weight`."""
        for value, change in zip(self.values, changes, strict=True):
            value.add_(change, alpha=weight)
        self.version += 1

    @torch.no_grad()
    def set(self, values: Sequence[Tensor]) -> None:
        """Replace the values, without counting an update."""
        for value, new in zip(self.values, values, strict=True):
            value.copy_(new)

    # ------------------------------------------------------------------------------------------ saving

    def state(self, flats: list[Tensor] | None = None) -> dict[str, Any]:
        """Return a copy of everything; `flats`, if given, is a copy of the values that can be used."""
        return {
            "flats": self.flat_copy() if flats is None else flats,
            "optimizer": _copied(self.optimizer.state_dict()["state"]),
            "groups": [_scalars(group) for group in self.optimizer.param_groups],
            "version": self.version,
            "clocks": {str(w): c for w, c in self.clocks.items()},
            "resting": sorted(self.paused),
            "scalars": {str(w): dict(s) for w, s in self.scalars.items()},
            "memory": _copied(self.memory),
            "planted": self.initialized,
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        for flat, kept in zip(self.flats.values(), state["flats"], strict=True):
            flat.copy_(kept)
        whole = self.optimizer.state_dict()
        whole["state"] = {int(k): v for k, v in _copied(state["optimizer"]).items()}
        self.optimizer.load_state_dict(whole)
        for group, kept in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()})
        self.version, self.initialized = state["version"], state["planted"]
        self.clocks = {int(w): c for w, c in state["clocks"].items()}
        self.paused = set(state["resting"])
        self.scalars = {int(w): dict(s) for w, s in state["scalars"].items()}
        self.memory = _copied(state["memory"])


def scalars_of(optimizer: Optimizer) -> dict[str, Scalar]:
    """Return the numbers in an optimizer's parameter groups, by `group.name`: what a scheduler may change."""
    return {
        f"{i}.{key}": value for i, group in enumerate(optimizer.param_groups) for key, value in _scalars(group).items()
    }


def _scalars(group: Mapping[str, Any]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for key, value in group.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            value = float(value)
        if isinstance(value, bool | int | float):
            found[key] = value
        elif isinstance(value, tuple) and value and all(isinstance(v, int | float) for v in value):
            found[key] = [float(v) for v in value]
    return found


def _moved(
    optimizer: Optimizer, parameters: Sequence[Tensor], ranges: Sequence[Range], values: Sequence[nn.Parameter]
) -> Optimizer:
    """Return a copy of the user's optimizer that steps on these values in place of the model's own.

    Groups keep their settings; the optimizer's state of a tensor is cut as the tensor's ranges are. It is copied
    attribute by attribute, because a subclass may have some that torch's own way of copying leaves behind.
    """
    order = {id(p): i for i, p in enumerate(parameters)}
    homes: dict[int, list[int]] = {}
    for place, r in enumerate(ranges):
        homes.setdefault(r.tensor, []).append(place)
    own: Optimizer = object.__new__(type(optimizer))
    own.__dict__.update(optimizer.__dict__)
    own.__dict__.pop("step", None)  # a scheduler's wrapper, which would step on the original
    own.param_groups = [
        {**group, "params": [values[k] for p in group["params"] for k in homes.get(order.get(id(p), -1), ())]}
        for group in optimizer.param_groups
    ]
    own.state = defaultdict(dict)
    for p, state in optimizer.state.items():
        for place in homes.get(order.get(id(p), -1), ()):
            own.state[values[place]] = {k: _part(v, ranges[place], values[place]) for k, v in state.items()}
    return own


def _part(entry: Any, of: Range, value: Tensor) -> Any:
    if isinstance(entry, Tensor) and entry.numel() > 1:
        return entry.detach().reshape(-1)[of.start : of.stop].view(value.shape).clone()
    return copy.deepcopy(entry)


def _copied(entry: Any) -> Any:
    if isinstance(entry, Tensor):
        return entry.detach().clone()
    if isinstance(entry, Mapping):
        return {str(k): _copied(v) for k, v in entry.items()}
    return [_copied(v) for v in entry] if isinstance(entry, list | tuple) else entry
