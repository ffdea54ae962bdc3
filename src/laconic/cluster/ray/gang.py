"""A gang: the workers of one job on the slots of one grant, all or none."""

from __future__ import annotations

import time
from enum import IntEnum
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.ray import nodes
from laconic.cluster.ray.member import Ended, Member, Seen
from laconic.cluster.ray.work import Seat, Task


class Stage(IntEnum):
    """How far a gang is: it holds devices from `BEGINNING` on."""

    PREPARING = 0
    PREPARED = 1
    TAKING = 2
    BEGINNING = 3
    RUNNING = 4


class Gang:
    """Its workers are actors in a placement group on the hosts that a grant names, so that all of them are there or
    none is. They prepare at once, beside whoever holds the devices; the devices are a placement group of its own, which
    the gang takes when it is prepared and they are free.

    - `job`: the number of its job.
    - `grant`: what the job holds.
    - `task`: how its work is made.
    - `cluster`: whose slots these are.
    - `name`: what its placement groups are called.
    """

    def __init__(self, job: int, grant: Grant, task: Task, cluster: Cluster, name: str) -> None:
        self.job, self.grant, self.stage = job, grant, Stage.PREPARING
        self.seen, self.is_stopping = Seen(0.0, 0.0), False
        self.made_at = self.prepared_at = self.free_at = time.time()  # the last: when what it waits for was free
        self._cluster, self._name = cluster, name
        self._devices: PlacementGroup | None = None
        self._seats = placement_group([nodes.seat(cluster, slot) for slot in grant.slots], name=f"{name}/seats")
        self.members = [
            Member.options(  # type: ignore[attr-defined]
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._seats, placement_group_bundle_index=rank),
                resources=nodes.seat(cluster, slot),
            ).remote(task, slot.device)
            for rank, slot in enumerate(grant.slots)
        ]
        self._awaited: dict[Any, int] = {member.prepare.remote(): rank for rank, member in enumerate(self.members)}
        self._answers: dict[int, Any] = {}

    @property
    def holds_devices(self) -> bool:
        """Whether the devices are its own."""
        return self.stage >= Stage.BEGINNING

    @property
    def awaited(self) -> list[Any]:
        """What Ray is to answer before the gang can go on."""
        return list(self._awaited)

    def take(self) -> None:
        """Ask Ray for the devices that the gang was granted."""
        self.stage = Stage.TAKING
        bundles = [nodes.device(self._cluster, slot) for slot in self.grant.slots]
        self._devices = placement_group(bundles, name=f"{self._name}/devices")

    @property
    def has_taken(self) -> bool:
        """Whether the devices that it has asked for are its own now: all of them."""
        assert self._devices is not None
        return bool(placement_group_table(self._devices)["state"] == "CREATED")

    def begin(self, target: float, save_every: float, folder: Path) -> None:
        """Let the workers join.

        - `target`: the work that there is to do.
        - `save_every`: seconds between checkpoints.
        - `folder`: where the job's checkpoints are.
        """
        self.stage = Stage.BEGINNING
        host, port = self._answers[0]
        seats = [
            Seat(rank, len(self.members), self.grant, self._cluster, host, port, str(folder))
            for rank in range(len(self.members))
        ]
        self._ask([m.begin.remote(seat, target, save_every) for m, seat in zip(self.members, seats, strict=True)])

    def run(self) -> None:
        """Let the workers step."""
        self.stage = Stage.RUNNING
        self._ask([member.run.remote() for member in self.members])

    def stop(self) -> None:
        """Ask the workers to save what they have done and to stop."""
        self.is_stopping = True
        self.members[0].stop.remote()

    def tune(self, grant: Grant) -> None:
        """Let the workers go on with another batch or clock.

        - `grant`: what the job holds now.
        """
        self.grant = grant
        for member in self.members:
            member.tune.remote(grant)

    def answered(self, reference: Any) -> Any:
        """Take an answer, and return that of rank 0 when all that is needed has come; it raises what a worker raised.

        - `reference`: what was answered.
        """
        rank = self._awaited.pop(reference, None)
        answer = ray.get(reference)
        if rank is not None:
            self._answers[rank] = answer
        if isinstance(answer, Ended):  # of a run, rank 0 decides when it ends: all workers have saved by then
            return answer if rank == 0 else None
        return self._answers[0] if len(self._answers) == len(self.members) else None

    def _ask(self, references: list[Any]) -> None:
        self._awaited, self._answers = {reference: rank for rank, reference in enumerate(references)}, {}

    def close(self) -> None:
        """Let the gang end at once, and give back what it holds."""
        for member in self.members:
            ray.kill(member)
        for group in (self._seats, self._devices):
            if group is not None:
                remove_placement_group(group)
