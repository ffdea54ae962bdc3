"""Jobs as people write them, for a Ray cluster or a virtual one: a TOML file with a table for each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laconic.cluster.data_parallel import DataParallel
from laconic.cluster.job import Fixed, Job, Progress
from laconic.cluster.ray.work import Task
from laconic.cluster.sending import Sending
from laconic.errors import ClusterError
from laconic.reading import Natural, NotNegative, Positive, Source

WAITS = "laconic.cluster.ray.waits:Waits"


@dataclass(frozen=True)
class WrittenJob:
    """A table of the file.

    - `name`: what tells the job from others.
    - `gpus`: the workers of its gang, or the part of a GPU that it asks for.
    - `arrival`: when it is submitted, in seconds after the start.
    - `place`: the class of its work, such as `examples/cluster_digits.py:Digits`; without one, the job only waits, as
      long as its steps or its seconds take.
    - `arguments`: what that is made with.
    - `steps`: how many there are to take.
    - `step_seconds`: how long one is expected to take on one worker; policies look at it.
    - `sync_seconds`: how long the parameters are expected to take over a link.
    - `model_bytes`: what a step sends where a network is modelled, in place of `sync_seconds`.
    - `layers`: the equal layers of that model.
    - `seconds`: how long a job that only waits takes.
    - `least`, `most`: the workers that it can do with and can use; default: its gang.
    - `tenant`: whose it is.
    - `kind`: what it trains; default: its place.
    """

    name: str
    gpus: Positive
    arrival: NotNegative = 0.0
    place: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    steps: Natural | None = None
    step_seconds: Positive = 1.0
    sync_seconds: NotNegative = 0.0
    model_bytes: NotNegative = 0.0
    layers: Natural = 1
    seconds: Positive | None = None
    least: Natural | None = None
    most: Natural | None = None
    tenant: str = ""
    kind: str = ""

    def made(self) -> tuple[Job, Task]:
        """Return the job with its task."""
        progress: Progress
        if not self.place and self.seconds is not None:
            progress = Fixed(self.seconds)
        elif self.steps is not None and self.model_bytes:
            progress = Sending(float(self.steps), self.step_seconds, self.model_bytes, split_over=1, layers=self.layers)
        elif self.steps is not None:
            progress = DataParallel(float(self.steps), self.step_seconds, self.sync_seconds, self.sync_seconds)
        else:
            raise ClusterError(
                f"{self.name} does not say what it does; give the place of its work and how many steps it takes, or "
                "the seconds that it waits"
            )
        task = Task(self.place, self.arguments) if self.place else Task(WAITS, {"progress": progress})
        least, most, kind = self.least or 0, self.most or 0, self.kind or self.place
        return Job(self.name, self.arrival, self.gpus, progress, self.tenant, kind, least, most), task


@dataclass(frozen=True)
class _File:
    job: list[WrittenJob]


def read_jobs(path: Path) -> list[tuple[Job, Task]]:
    """Return the jobs of a file, each with its task; places of files are from the current folder on.

    - `path`: a TOML file with a `[[job]]` for each.
    """
    source = Source(path, "file of jobs", "give a TOML file with a [[job]] for each job", ClusterError)
    try:
        tree = tomllib.loads(source.text())
    except tomllib.TOMLDecodeError as error:
        raise source.refused(error) from error
    return [written.made() for written in source.value(tree, _File).job]
