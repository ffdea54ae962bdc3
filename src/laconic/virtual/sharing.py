"""Equal workers share the memory of parameters and optimizer state, and one optimizer step serves them all.

A step is a function of parameters, state, gradients and settings. The first worker to take it keeps these inputs and
the outcome; a worker with the same bits as inputs adopts the outcome instead of computing it again. A worker with other
inputs (another gradient, a parameter written to by the script) steps alone, and so does one whose optimizer might do
more than torch's own (a hook, a wrapped `step`, a class of the user's). So sharing changes no bit: see
`copy_on_write.py` for how the kernel keeps private what a worker writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, optim
from torch.autograd.graph import increment_version
from torch.optim import optimizer as torch_optimizer

from laconic.runtime.undistributed import before_step
from laconic.virtual.copy_on_write import Arena, Image, available, place_of
from laconic.virtual.snapshot import Snapshot

Key = tuple[int, str]
"""The key of an entry of the optimizer's state: the parameter's number, and the entry's name."""


@dataclass(eq=False)
class Version:
    """Parameters and optimizer state after some step, with the inputs and the outcome of the first step from there."""

    parameters: Image
    state: Image | None
    keys: tuple[Key, ...]  # of the state's tensors, in order
    likes: tuple[Tensor, ...]
    settings: Any = None
    gradients: Snapshot | None = None
    after: Version | None = None


class Family:
    """The versions of one model on all workers, by number of steps taken; a version no worker uses is freed."""

    def __init__(self) -> None:
        self.at_step: WeakValueDictionary[int, Version] = WeakValueDictionary()


class Replica:
    """One worker's parameters and optimizer, whose steps may be shared while `equal()` is true of all replicas."""

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
        self._held: list[Tensor] = []  # the state's tensors, whose memory is the arena
        self._state_arena: Arena | None = None
        self._version: Version | None = None
        self._steps = 0
        if equal():
            self._current_version()

    @staticmethod
    def possible(optimizer: optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
        """Return whether these are plain CPU tensors that own their storages, and the optimizer is one of torch's."""
        known = type(optimizer).__module__.startswith("torch.optim.")
        return available() and known and all(map(_owns_its_memory, parameters))

    def step(self) -> None:
        """Do what `optimizer.step()` does, with the same bits as its result."""
        settings = self._settings() if self._shareable() else None
        version = None if settings is None else self._current_version()
        self._steps += 1
        gradients = [p.grad for p in self._parameters]
        if version is None or (version.gradients is None and not Snapshot.possible(gradients)):
            self._step_alone()
        elif version.after is None or version.gradients is None:
            kept = Snapshot(gradients)
            self._step_alone()
            if kept.equals(gradients):  # a step that changes gradients cannot be shared
                self._version = self._publish()
            if self._version is not None:
                version.settings, version.gradients, version.after = settings, kept, self._version
        elif settings == version.settings and version.gradients.equals(gradients):
            self._adopt(version.after)
            increment_version([p for p, g in zip(self._parameters, gradients, strict=True) if g is not None])
        else:
            self._step_alone()

    def _step_alone(self) -> None:
        self._version = None
        self._optimizer.step()

    def _shareable(self) -> bool:
        """Return whether a step is nothing but torch's own arithmetic on tensors that are still in their arenas."""
        optimizer = self._optimizer
        hooks: list[Any] = [
            *optimizer._optimizer_step_pre_hooks.values(),
            *optimizer._optimizer_step_post_hooks.values(),
            *torch_optimizer._global_optimizer_pre_hooks.values(),
            *torch_optimizer._global_optimizer_post_hooks.values(),
        ]
        more = any(hook is not before_step for hook in hooks)  # which has nothing to say once a script is distributed
        more = more or "step" in optimizer.__dict__ or getattr(optimizer, "grad_scale", None) is not None
        return not more and self._equal() and self._in_place()

    def _in_place(self) -> bool:
        """Return whether parameters and state are still in their arenas: a script may have replaced them."""
        if list(map(place_of, self._parameters)) != self._arena.places:
            return False
        state = self._state()
        if state is None:
            return False
        return self._version is None or self._holds(state)  # None: laid out when published

    def _holds(self, state: dict[Key, Tensor]) -> bool:
        """Return whether the state's tensors are those in the state's arena, each at its place."""
        places = [] if self._state_arena is None else self._state_arena.places
        same = tuple(state) == self._keys and all(a is b for a, b in zip(state.values(), self._held, strict=True))
        return same and list(map(place_of, self._held)) == places

    def _state(self) -> dict[Key, Tensor] | None:
        """Return all tensors of the optimizer's state, or None if it holds anything else that a step could change."""
        tensors: dict[Key, Tensor] = {}
        for parameter, entries in self._optimizer.state.items():
            number = self._numbers.get(id(parameter))
            for name, value in entries.items():
                if value is None:
                    continue
                if number is None or not isinstance(value, Tensor) or value.device.type != "cpu":
                    return None
                tensors[number, name] = value
        return tensors

    def _settings(self) -> list[Any] | None:
        """Return the optimizer's groups as plain values, or None where they hold a parameter that was added later."""
        groups = self._optimizer.param_groups
        if any(id(p) not in self._numbers for group in groups for p in group["params"]):
            return None
        return [
            {k: [self._numbers[id(p)] for p in v] if k == "params" else _plain(v) for k, v in group.items()}
            for group in groups
        ]

    # ------------------------------------------------------------------------------------------ versions

    def _current_version(self) -> Version | None:
        """Return the version this worker's memory equals: the one it adopted, or another worker's of the same step."""
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
        """Make a version of this worker's memory, and map the memory to it."""
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
        if self._keys != version.keys:  # the step made state for more parameters
            own = self._state() or {}
            arena = Arena(version.likes)
            for (number, name), place in zip(version.keys, arena.tensors, strict=True):
                tensor = own.get((number, name))
                if tensor is None:
                    self._optimizer.state[self._parameters[number]][name] = place.detach()
                else:
                    tensor.data = place
            self._set_state(self._state() or {}, arena)
        self._map(version)
        self._version = version

    def _lay_out(self, state: dict[Key, Tensor]) -> None:
        """Move the memory of the state's tensors to an arena; the tensor objects stay the same."""
        if self._holds(state):
            return
        arena = Arena(list(state.values()))
        for tensor, place in zip(state.values(), arena.tensors, strict=True):
            place.copy_(tensor)
            tensor.data = place
        self._set_state(state, arena if state else None)

    def _set_state(self, state: dict[Key, Tensor], arena: Arena | None) -> None:
        self._keys, self._held, self._state_arena = tuple(state), list(state.values()), arena

    def _map(self, version: Version) -> None:
        self._arena.adopt(version.parameters)
        if self._state_arena is not None and version.state is not None:
            self._state_arena.adopt(version.state)


def _owns_its_memory(tensor: Tensor) -> bool:
    """Return whether a CPU tensor is the only user of its whole storage: an alias would keep the old memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() == tensor.nbytes and torch._C._storage_Use_Count(storage._cdata) <= _OWN_USES


_OWN_USES = 2  # the tensor's, and that of the storage object asked here


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value
