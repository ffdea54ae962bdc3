"""Equal workers share the memory of parameters and optimizer state, and one optimizer step serves them all.

A step is a function of parameters, state, gradients and settings. The first worker to take it leaves these and the
outcome behind; whoever comes with the same bits adopts the outcome instead of computing it again. Whoever comes with
others (another gradient, a parameter written to by the script) steps alone. So nothing is assumed of the script or the
strategy, and sharing changes no bit: see `memory.py` for how the kernel keeps private what a worker writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, optim
from torch.autograd.graph import increment_version

from laconic.engine.virtual.memory import Arena, Image, available, equal

Key = tuple[int, str]
"""An entry of the optimizer's state: of which parameter, under which name."""


@dataclass(eq=False)
class Version:
    """Parameters and state at one moment, and what the first step from here took and made."""

    parameters: Image
    state: Image | None
    keys: tuple[Key, ...]  # of the state's tensors, in order
    likes: tuple[Tensor, ...]
    settings: Any = None
    gradients: list[Tensor | None] = field(default_factory=list)
    after: Version | None = None


class Family:
    """The versions of one model on all workers, by number of steps taken; gone when no worker stands on them."""

    def __init__(self) -> None:
        self.at_step: WeakValueDictionary[int, Version] = WeakValueDictionary()


class Replica:
    """One worker's parameters and its optimizer, whose steps may be shared while `equal()` says that replicas are."""

    def __init__(
        self, family: Family, optimizer: optim.Optimizer, parameters: Sequence[Tensor], equal: Callable[[], bool]
    ) -> None:
        self._family, self._optimizer, self._equal = family, optimizer, equal
        self._parameters = list(parameters)
        self._arena = Arena(self._parameters)
        for parameter, place in zip(self._parameters, self._arena.tensors, strict=True):
            place.copy_(parameter.data)
            parameter.data = place
        self._numbers = {id(p): i for i, p in enumerate(self._parameters)}
        self._keys: tuple[Key, ...] = ()
        self._state_arena: Arena | None = None
        self._version: Version | None = None
        self._steps = 0
        if equal():
            self._stand()

    @staticmethod
    def possible(optimizer: optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
        """Plain tensors in the CPU's memory, each with a storage of its own, and an optimizer without secrets."""
        own = all(
            p.device.type == "cpu" and p.layout == torch.strided and p.untyped_storage().nbytes() == p.nbytes
            for p in parameters
        )
        known = type(optimizer).__module__.startswith("torch.optim.")
        return available() and own and known and len({p.data_ptr() for p in parameters}) == len(parameters)

    def step(self) -> None:
        """As `optimizer.step()`: to the bit."""
        version = self._stand() if self._shareable() else None
        self._steps += 1
        if version is None:
            self._version = None
            self._optimizer.step()
            return
        settings, gradients = self._settings(), [p.grad for p in self._parameters]
        if version.after is None:
            kept = [None if g is None else g.detach().clone() for g in gradients]
            self._optimizer.step()
            self._version = self._publish()
            if self._version is not None:
                version.settings, version.gradients, version.after = settings, kept, self._version
        elif settings == version.settings and all(map(_alike, gradients, version.gradients)):
            self._adopt(version.after)
        else:
            self._version = None
            self._optimizer.step()

    def _shareable(self) -> bool:
        hooks = self._optimizer._optimizer_step_pre_hooks or self._optimizer._optimizer_step_post_hooks
        scaled = getattr(self._optimizer, "grad_scale", None) is not None
        return not hooks and not scaled and self._equal() and self._in_place()

    def _in_place(self) -> bool:
        """Whether parameters and state still lie where they were put: `load_state_dict` may have replaced them."""
        moved = any(p.data_ptr() != t.data_ptr() for p, t in zip(self._parameters, self._arena.tensors, strict=True))
        state = self._state()
        places = [] if self._state_arena is None else self._state_arena.tensors
        if moved or state is None:
            return False
        if self._version is None:  # not yet laid out, or left behind: laid out when published
            return True
        tensors = list(state.values())
        return tuple(state) == self._keys and all(a is b for a, b in zip(tensors, places, strict=True))

    def _state(self) -> dict[Key, Tensor] | None:
        """All tensors of the optimizer's state; None if it holds anything else that a step could change."""
        found: dict[Key, Tensor] = {}
        for parameter, entries in self._optimizer.state.items():
            number = self._numbers.get(id(parameter))
            for name, value in entries.items():
                if value is None:
                    continue
                if number is None or not isinstance(value, Tensor) or value.device.type != "cpu":
                    return None
                found[number, name] = value
        return found

    def _settings(self) -> list[Any]:
        """The optimizer's groups as plain values: tensors among them (a learning rate) by their value."""
        return [
            {k: [self._numbers[id(p)] for p in v] if k == "params" else _plain(v) for k, v in group.items()}
            for group in self._optimizer.param_groups
        ]

    # ------------------------------------------------------------------------------------------ versions

    def _stand(self) -> Version | None:
        """The version that this worker's memory equals: the one it adopted, or another worker's of the same step."""
        if self._version is not None and not self._written():
            return self._version
        state = self._state()
        self._version = None
        if state is None:
            return None
        other = self._family.at_step.get(self._steps)
        if other is None:
            self._version = self._publish()
        elif self._arena.reads_as(other.parameters) and self._state_reads_as(other, state):
            self._adopt(other)
        return self._version

    def _written(self) -> bool:
        return self._arena.written() or (self._state_arena is not None and self._state_arena.written())

    def _state_reads_as(self, other: Version, state: dict[Key, Tensor]) -> bool:
        if tuple(state) != other.keys or other.state is None:
            return tuple(state) == other.keys
        self._lay_out(state)
        assert self._state_arena is not None
        return self._state_arena.reads_as(other.state)

    def _publish(self) -> Version | None:
        """What this worker's memory holds becomes a version, which it then stands on."""
        state = self._state()
        if state is None:
            return None
        self._lay_out(state)
        images = [None if arena is None else arena.image() for arena in (self._arena, self._state_arena)]
        assert images[0] is not None
        version = Version(images[0], images[1], self._keys, tuple(state.values()))
        self._family.at_step[self._steps] = version
        self._map(version)
        return version

    def _adopt(self, version: Version) -> None:
        if self._keys != version.keys:
            places = Arena(version.likes)
            for (number, name), place in zip(version.keys, places.tensors, strict=True):
                self._optimizer.state[self._parameters[number]][name] = place
            self._keys, self._state_arena = version.keys, places
        self._map(version)
        increment_version(self._parameters)
        self._version = version

    def _lay_out(self, state: dict[Key, Tensor]) -> None:
        """Bring the state's tensors into an arena; the tensors themselves stay who they are."""
        places = [] if self._state_arena is None else self._state_arena.tensors
        if tuple(state) == self._keys and all(a is b for a, b in zip(state.values(), places, strict=True)):
            return
        self._keys = tuple(state)
        self._state_arena = Arena(list(state.values())) if state else None
        for tensor, place in zip(state.values(), self._state_arena.tensors if self._state_arena else (), strict=True):
            place.copy_(tensor)
            tensor.data = place
        if self._state_arena is not None:
            self._state_arena.tensors = list(state.values())

    def _map(self, version: Version) -> None:
        self._arena.adopt(version.parameters)
        if self._state_arena is not None and version.state is not None:
            self._state_arena.adopt(version.state)


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else equal(a.detach(), b)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
