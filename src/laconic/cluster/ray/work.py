"""What a job's workers do: prepare, join their gang, step, save; and the seat that each of them is given."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster

GO_ON, SAVE, STOP = range(3)
"""What a worker wishes before a step; the greatest wish of a gang is what happens."""


@dataclass(frozen=True)
class Seat:
    """A worker's place in its gang.

    - `rank`, `size`: which worker of how many.
    - `grant`: what the job holds.
    - `cluster`: whose slots these are.
    - `host`, `port`: where the workers can meet: an address of rank 0.
    - `folder`: where the job's checkpoints are, for all workers that the job ever has.
    """

    rank: int
    size: int
    grant: Grant
    cluster: Cluster
    host: str
    port: int
    folder: str

    def enter(self) -> None:
        """Write the seat into this process's environment as torchrun does, where `laconic.distribute` reads it."""
        told = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": 0,  # each worker sees its own device alone
            "MASTER_ADDR": self.host,
            "MASTER_PORT": self.port,
        }
        os.environ.update({name: str(value) for name, value in told.items()})


class Work(ABC):
    """One worker's part of a job, in a process of its own; its work is counted in the unit of the job's `Progress`."""

    @abstractmethod
    def prepare(self) -> None:
        """Do what needs neither the other workers nor a device nor a checkpoint, such as imports and building the
        model: this happens while another gang may still compute."""

    @abstractmethod
    def begin(self, seat: Seat) -> float:
        """Join the gang, restore the job's last checkpoint if it has one, and return the work that is done.

        - `seat`: the worker's place.
        """

    @abstractmethod
    def step(self) -> float:
        """Take one step, and return the work that is done."""

    @abstractmethod
    def save(self) -> None:
        """Save a checkpoint from which any number of workers can begin; the last one stays until it is complete."""

    def agree(self, wish: int) -> int:
        """Return the greatest wish of all workers of the gang, which all take the same steps. Rank 0 alone is told what
        to wish: a gang whose other workers follow it in another way, or that is alone, has nothing to do here.

        - `wish`: this worker's: `GO_ON`, `SAVE` or `STOP`.
        """
        return wish

    def tune(self, grant: Grant) -> None:
        """Go on with another batch or clock on the same slots, from the next step on.

        - `grant`: what the job holds now.
        """
        del grant


@dataclass(frozen=True)
class Task:
    """How to make a job's `Work` in any process.

    - `place`: its class, as in `jobs/digits.py:Digits` or `my_package.jobs:Digits`.
    - `arguments`: what it is made with.
    """

    place: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
