"""Vectors of a GPU's training that lie in the host's pinned memory while nobody needs them.

A `Stay` brings some of them to the GPU and back. They are fetched on one stream, used on the current one and returned
on a third, so that the copies for some vectors, in both directions, overlap with what is computed and sent for others.
Where vectors lie with those who use them, as on CPUs, nothing is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

_LEAVING = 2
"""The stays that may be over on the host and not yet on the GPU: with fewer, copies to the GPU wait for those from
it."""


def room(numel: int, dtype: torch.dtype, device: torch.device, offload: bool) -> Tensor:
    """Return uninitialised memory for a vector that is used on a device: there, or where it is to be offloaded from a
    GPU in the host's pinned memory."""
    if offload and device.type == "cuda":
        return torch.empty(numel, dtype=dtype, pin_memory=True)
    return torch.empty(numel, dtype=dtype, device=device)


class Lanes:
    """The two streams on which vectors come to a GPU and leave it, and the memory they have there in the meantime.

    That memory is allocated on the stream that fetches, so that no fetch waits for what the GPU computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._up, self._down = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._returned: dict[int, torch.cuda.Event] = {}  # by a home's address: when it holds what was returned last
        self._leaving: deque[tuple[list[Tensor], torch.cuda.Event]] = deque()

    def fetch(self, home: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Begin to copy a vector to the GPU; return the copy and when it is complete."""
        returned = self._returned.get(home.data_ptr())
        if returned is not None:
            self._up.wait_event(returned)
        with torch.cuda.stream(self._up):
            guest = torch.empty(home.shape, dtype=home.dtype, device=self._device)
            guest.copy_(home, non_blocking=True)
            return guest, self._up.record_event()

    def wait(self, fetched: torch.cuda.Event) -> None:
        """Let the current stream wait for a fetched vector."""
        torch.cuda.current_stream(self._device).wait_event(fetched)

    def give_back(self, guest: Tensor, home: Tensor) -> None:
        """Begin to copy a vector home, as soon as the current stream has computed it."""
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._down):
            home.copy_(guest, non_blocking=True)
            self._returned[home.data_ptr()] = self._down.record_event()

    def release(self, guests: list[Tensor]) -> None:
        """Give up the memory of fetched vectors, which the current stream has been told to use for the last time."""
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        self._leaving.append((guests, self._down.record_event()))
        while len(self._leaving) > _LEAVING:
            self._free_oldest()

    def flush(self) -> None:
        """Free all memory that was given up."""
        while self._leaving:
            self._free_oldest()

    def synchronize(self) -> None:
        """Wait until all that was given back is at home."""
        self._down.synchronize()

    def _free_oldest(self) -> None:
        _, done = self._leaving.popleft()
        self._up.wait_event(done)  # the memory belongs to this stream, which alone uses it again


@cache
def lanes_of(device: torch.device) -> Lanes:
    """Return the lanes between the host and a GPU."""
    return Lanes(device)


def lanes_between(home: Tensor, device: torch.device) -> Lanes | None:
    """Return the lanes by which a vector comes to a device, or None if it can be used there where it lies."""
    return lanes_of(device) if home.device.type == "cpu" and device.type == "cuda" else None


class Stay:
    """Vectors that are used on a device for a while; those that lie elsewhere are fetched from the first moment on.

    `stay[k]` is the k-th vector as the current stream may use it. At the `end`, those that were used return home.
    """

    def __init__(self, homes: Sequence[Tensor], device: torch.device) -> None:
        self._homes = list(homes)
        self._lanes = lanes_between(self._homes[0], device) if self._homes else None
        self._fetched = [] if self._lanes is None else [self._lanes.fetch(home) for home in self._homes]
        self._used: set[int] = set()

    def __getitem__(self, k: int) -> Tensor:
        if self._lanes is None:
            return self._homes[k]
        guest, fetched = self._fetched[k]
        if k not in self._used:
            self._lanes.wait(fetched)
            self._used.add(k)
        return guest

    def end(self, changed: bool = True) -> None:
        """Return the vectors home, if they were changed, and give their memory on the device up."""
        if self._lanes is None:
            return
        guests = [guest for guest, _ in self._fetched]
        self._fetched = []
        for k in sorted(self._used) if changed else ():
            self._lanes.give_back(guests[k], self._homes[k])
        self._lanes.release(guests)


def flush(device: torch.device) -> None:
    """Free the memory that ended stays still hold on a device, after the last of several."""
    if device.type == "cuda":
        lanes_of(device).flush()


def synchronize(device: torch.device) -> None:
    """Wait until everything that was offloaded from a device can be read in the host's memory."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
        lanes_of(device).synchronize()
