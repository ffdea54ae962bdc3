"""The place of a process in its job, as the launcher wrote it into the environment: torchrun's variables, or srun's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from laconic.values import slurm

PLACE_VARIABLES = ("RANK", "WORLD_SIZE", slurm.TASK)
"""Without these variables a process is the only one of its job."""


@dataclass(frozen=True)
class ProcessPlace:
    """Which worker of how many a process is, and where they meet."""

    rank: int = 0
    size: int = 1
    is_launched: bool = False  # whether a launcher has told both
    local_rank: int = 0
    local_size: int | None = None  # workers on this host; None where nobody told
    host: str = "127.0.0.1"
    port: int | None = None  # None where nobody told

    @classmethod
    def current(cls) -> ProcessPlace:
        """Return this process's place; a process that no launcher has started is alone."""
        return cls.of(os.environ)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ProcessPlace:
        """Return the place that an environment describes. `RANK` and `WORLD_SIZE` come first: torchrun sets them, also
        inside a task of Slurm's. Where workers meet is what the variables of torch say, and nothing that they could
        derive: a script may have joined the job in a way of its own."""
        told: Mapping[str, str] = {**environment, **torch_variables(environment)}
        local_size, port = told.get("LOCAL_WORLD_SIZE"), environment.get("MASTER_PORT")
        return cls(
            rank=int(told.get("RANK", "0")),
            size=int(told.get("WORLD_SIZE", "1")),
            is_launched="RANK" in told and "WORLD_SIZE" in told,
            local_rank=int(told.get("LOCAL_RANK", "0")),
            local_size=None if local_size is None else int(local_size),
            host=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=None if port is None else int(port),
        )


def torch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables that another launcher has left out: none where torchrun's own are set."""
    if "RANK" in environment or "WORLD_SIZE" in environment or not slurm.is_task(environment):
        return {}
    return slurm.torch_variables(environment)
