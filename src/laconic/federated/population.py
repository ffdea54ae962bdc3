"""A population of clients as arrays: their data, speeds and links, and when each can be reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.errors import LaconicError
from laconic.federated.partition import Integers, Shards

Floats = NDArray[np.float64]


class Availability(Protocol):
    """When clients can be reached."""

    def until(self, clients: Integers, now: float) -> Floats:
        """Return until when each of these clients can be reached without a break; `now` or earlier where it cannot be
        reached now."""
        ...

    def next_change(self, now: float) -> float:
        """Return the next time at which somebody can be reached who cannot be reached now, or infinity."""
        ...


@dataclass(frozen=True)
class Always:
    """Clients that can be reached at any time."""

    def until(self, clients: Integers, now: float) -> Floats:
        return np.full(len(clients), np.inf)

    def next_change(self, now: float) -> float:
        return np.inf


@dataclass(frozen=True, eq=False)
class Daily:
    """Clients that can be reached in a part of every day, such as the night, each at its own time of day.

    - `begins`: when each client's window begins, in seconds of the day.
    - `lasts`: how many seconds it lasts.
    - `day`: the seconds of a day.
    """

    begins: Floats
    lasts: Floats
    day: float = 86_400.0

    def until(self, clients: Integers, now: float) -> Floats:
        since = np.mod(now - self.begins[clients], self.day)
        return np.asarray(now + self.lasts[clients] - since)

    def next_change(self, now: float) -> float:
        wait = np.mod(self.begins - now, self.day)
        wait[wait <= 0] = self.day
        return float(now + wait.min())


@dataclass(frozen=True, eq=False)
class Trace:
    """Clients that can be reached in recorded intervals: those of client k are rows starts[k] to starts[k + 1] of
    (begin, end), in ascending order."""

    intervals: Floats
    starts: Integers

    def until(self, clients: Integers, now: float) -> Floats:
        low, high = self.starts[clients], self.starts[np.asarray(clients) + 1]
        first = low
        while (open_ := low < high).any():  # a binary search of all clients together, for the first that begins later
            middle = (low + high) // 2
            begun = open_ & (self.intervals[np.minimum(middle, len(self.intervals) - 1), 0] <= now)
            low, high = np.where(begun, middle + 1, low), np.where(open_ & ~begun, middle, high)
        ends = np.full(len(clients), now)
        some = low > first
        ends[some] = self.intervals[low[some] - 1, 1]
        return ends

    def next_change(self, now: float) -> float:
        later = int(np.searchsorted(self._begins, now, side="right"))
        return float(self._begins[later]) if later < len(self._begins) else np.inf

    @cached_property
    def _begins(self) -> Floats:
        return np.sort(self.intervals[:, 0])


def _each(values: ArrayLike, clients: int, what: str) -> Floats:
    array = np.broadcast_to(np.asarray(values, dtype=np.float64), (clients,))
    if (array <= 0).any():
        raise LaconicError(f"{what} of a client is above zero")
    return array


@dataclass(frozen=True, eq=False)
class Population:
    """Clients, by number.

    - `shards`: the samples of each.
    - `sample_seconds`: how long each trains on one sample; a number for all, or one for each.
    - `step_seconds`: how long each step takes beside its samples, so that larger batches are faster.
    - `up_bits`, `down_bits`: the bits per second that each sends and receives.
    - `availability`: when each can be reached.
    - `lost`: the probability that a client which was selected vanishes before it has reported.
    """

    shards: Shards
    sample_seconds: ArrayLike = 1e-3
    up_bits: ArrayLike = 1e7
    down_bits: ArrayLike = 1e7
    availability: Availability = field(default_factory=Always)
    lost: float = 0.0
    step_seconds: ArrayLike = 0.0

    def __post_init__(self) -> None:
        for name, what in (("sample_seconds", "the time"), ("up_bits", "the rate"), ("down_bits", "the rate")):
            object.__setattr__(self, name, _each(getattr(self, name), len(self.shards), what))
        beside = np.broadcast_to(np.asarray(self.step_seconds, dtype=np.float64), (len(self.shards),))
        if (beside < 0).any():
            raise LaconicError("the time of a client's step beside its samples is at least zero")
        object.__setattr__(self, "step_seconds", beside)
        if not 0 <= self.lost < 1:
            raise LaconicError("the probability that a client is lost is at least 0 and below 1")

    def __len__(self) -> int:
        return len(self.shards)

    def reachable(self, now: float) -> Integers:
        """Return the clients that can be reached now and have data."""
        everyone = self._with_data
        return everyone[self.availability.until(everyone, now) > now]

    @cached_property
    def _with_data(self) -> Integers:
        return np.flatnonzero(self.shards.sizes)

    def train_seconds(self, client: int, samples: float, steps: float = 0) -> float:
        """Return how long a client trains on so many samples, each counted as often as it is used, in so many steps."""
        return float(np.asarray(self.sample_seconds)[client] * samples + np.asarray(self.step_seconds)[client] * steps)

    def send_seconds(self, client: int, nbytes: float, down: bool) -> float:
        """Return how long so many bytes take to a client, or from it."""
        return float(8 * nbytes / np.asarray(self.down_bits if down else self.up_bits)[client])

    def is_lost(self, client: int, round_number: int, seed: int) -> bool:
        """Return whether a client that was selected in this round vanishes."""
        return self.lost > 0 and float(np.random.default_rng([seed, 0x105, round_number, client]).random()) < self.lost
