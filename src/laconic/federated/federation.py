"""A federation as people write it: a task, how its samples are divided, and what clients are like."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from torch import Tensor

from laconic.errors import LaconicError
from laconic.federated.partition import Shards, alike, by_label, by_quantity, dirichlet, iid, natural
from laconic.federated.population import Always, Availability, Daily, Population
from laconic.federated.task import Task
from laconic.federated.tasks import Blank, find_task
from laconic.federated.trace import read_trace
from laconic.reading import Count, Natural, NotNegative, Positive, Share, Source
from laconic.units import bits_per_second

_DAY = 86_400.0


@dataclass(frozen=True)
class Federation:
    """What is learned by whom.

    - `task`: the name of a task, or the place of a function that returns one.
    - `clients`: how many there are.
    - `partition`: how samples are divided; `natural` takes the task's `groups`, whatever `clients` says.
    - `concentration`: of `dirichlet` and `by_quantity`; the smaller, the more clients differ.
    - `shards_each`: of `by_label`, how many pieces of one label each client holds.
    - `sample_seconds`: how long a client trains on a sample; half of them take longer.
    - `spread`: the standard deviation of the logarithm of that time among clients.
    - `up`, `down`: the rates at which a client sends and receives.
    - `link_spread`: the standard deviation of the logarithm of both rates among clients.
    - `awake`: the share of every day in which a client can be reached, each at its own time.
    - `trace`: a CSV table with the columns `client`, `begin` and `end`, in seconds: when each can be reached, in place
      of `awake`.
    - `lost`: the probability that a client which was selected vanishes.
    - `rate`: the clients' learning rate.
    - `steps`: how many steps the server makes.
    - `evaluate_every`: after how many steps the model is judged.
    - `seed`: of everything that is drawn.
    - `strategies`: sentences.
    - `target`: the score, and the value of it, to which bytes and seconds are counted, as `accuracy=0.9`.
    """

    task: str = "digits"
    clients: Natural = 100
    partition: Literal["iid", "dirichlet", "by_label", "by_quantity", "natural"] = "dirichlet"
    concentration: Positive = 0.5
    shards_each: Natural = 2
    sample_seconds: Positive = 1e-3
    spread: NotNegative = 0.5
    up: str = "10Mbit"
    down: str = "50Mbit"
    link_spread: NotNegative = 0.0
    awake: Share = 1.0
    trace: str = ""
    lost: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    rate: Positive = 0.1
    steps: Natural = 100
    evaluate_every: Natural = 5
    seed: Count = 0
    strategies: tuple[str, ...] = ()
    target: str = ""

    @classmethod
    def read(cls, path: Path | None, **given: Any) -> Federation:
        """Return what a TOML file says, with what is given in place of it; what neither says takes its default."""
        source = Source(path or "what was given", "federation", "write a TOML file with these names", LaconicError)
        try:
            tree = tomllib.loads(source.text()) if path is not None else {}
        except tomllib.TOMLDecodeError as error:
            raise source.refused(error) from error
        return source.value({**tree, **{name: value for name, value in given.items() if value is not None}}, cls)

    @cached_property
    def _found(self) -> tuple[Task, Tensor]:
        return find_task(self.task)

    @property
    def learned(self) -> Task:
        """The task that clients learn, with its model and its samples."""
        return self._found[0]

    @property
    def labels(self) -> Tensor:
        """The label of every sample."""
        return self._found[1]

    def shards(self) -> Shards:
        """Return who holds which samples."""
        task, labels = self._found
        if self.partition == "natural":
            if (groups := getattr(task, "groups", None)) is None:
                raise LaconicError(f"the task {self.task} names no groups; give it an array `groups`, or write iid")
            return natural(groups)
        if self.clients > len(labels):
            raise LaconicError(f"{self.task} has {len(labels)} samples, fewer than {self.clients} clients")
        if self.partition == "iid":
            return iid(len(labels), self.clients, self.seed)
        if self.partition == "by_quantity":
            return by_quantity(len(labels), self.clients, self.concentration, self.seed)
        if self.partition == "by_label":
            return by_label(labels, self.clients, self.shards_each, self.seed)
        return dirichlet(labels, self.clients, self.concentration, self.seed)

    @cached_property
    def population(self) -> Population:
        """The clients with their shards, speeds, links and hours."""
        return self._among(self.shards())

    def _among(self, shards: Shards) -> Population:
        count, draw = len(shards), np.random.default_rng([self.seed, 0xFED])
        speeds = self.sample_seconds * np.exp(self.spread * draw.standard_normal(count))
        windows = Daily(draw.uniform(0, _DAY, count), np.full(count, self.awake * _DAY), _DAY)
        links = np.exp(self.link_spread * draw.standard_normal(count))
        available: Availability = Always() if self.awake == 1 else windows
        if self.trace:
            available = read_trace(Path(self.trace), count)
        up, down = bits_per_second(self.up) * links, bits_per_second(self.down) * links
        return Population(shards, speeds, up, down, available, self.lost)

    def of_size(self, parameters: int, samples_each: int) -> tuple[Task, Population]:
        """Return a model of so many parameters, and clients that hold so many samples each, in place of the task."""
        return Blank(parameters), self._among(alike(self.clients, samples_each))
