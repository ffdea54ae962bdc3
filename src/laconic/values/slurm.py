"""What `srun` writes into the environment of each task of a job step, as the variables that torchrun would have set.

Only tasks of a step are read so. In a shell of `salloc`, and in the batch script itself, Slurm sets the number of tasks
that the job asked for, too, but runs one process: that stays alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TASK = "SLURM_PROCID"
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # the batch script, the interactive shell and the like have step ids from here on
_FIRST_PORT, _PORTS = 15_000, 16_384  # below the range from which Linux takes ports of outgoing connections


def is_task(environment: Mapping[str, str]) -> bool:
    """Return whether `srun` has started this process as one of several tasks of a step."""
    if any(name not in environment for name in (TASK, "SLURM_NTASKS", "SLURM_STEP_ID")):
        return False
    return int(environment["SLURM_STEP_ID"]) < _FIRST_SPECIAL_STEP and _tasks(environment) > 1


def torch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would have set for this task. `MASTER_ADDR` and `MASTER_PORT` are kept where they are set;
    otherwise tasks meet on the step's first host, at a port that follows from the job and the step."""
    size = _tasks(environment)
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    port = port_of(int(environment.get("SLURM_JOB_ID", "0")), int(environment["SLURM_STEP_ID"]))
    return {
        "RANK": environment[TASK],
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(_tasks_here(environment, size)),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(hosts),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
    }


def first_host(hosts: str) -> str:
    """Return the first host of a list as Slurm writes it: `node[07-12,40],login` begins with `node07`."""
    comma = re.search(r",(?![^\[]*\])", hosts)  # one that is not inside brackets
    first = hosts if comma is None else hosts[: comma.start()]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def port_of(job: int, step: int) -> int:
    """Return the port at which the tasks of a step meet: another one for the next steps and the next jobs."""
    return _FIRST_PORT + (16 * job + step) % _PORTS


def _tasks(environment: Mapping[str, str]) -> int:
    return int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"])


def _tasks_here(environment: Mapping[str, str], size: int) -> int:
    """Return the number of tasks on this host, from counts such as `4(x2),3`; without them hosts have equally many."""
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    if counts is None:
        return size // int(environment.get("SLURM_NNODES", "1"))
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    by_host = [int(tasks) for tasks, hosts in found for _ in range(int(hosts or 1))]
    return by_host[int(environment.get("SLURM_NODEID", "0"))]
