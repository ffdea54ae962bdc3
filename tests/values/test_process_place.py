"""The place of a process in its job: torchrun's variables, srun's, or none."""

from __future__ import annotations

import pytest

from laconic.values.process_place import ProcessPlace, torch_variables
from laconic.values.slurm import first_host, port_of

TASK = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_JOB_NODELIST": "gpu[01-04]",
    "SLURM_JOB_ID": "4711",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in TASK.items() if name not in names}


def test_a_task_of_srun_gets_the_variables_that_torchrun_would_set() -> None:
    assert torch_variables(TASK) == {
        "RANK": "5",
        "WORLD_SIZE": "7",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": str(port_of(4711, 0)),
    }
    place = ProcessPlace.of(TASK)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (5, 7, 1, 3)
    assert place.is_launched and place.port is None, "nobody has joined at the derived port yet"


def test_what_the_user_sets_comes_first() -> None:
    told = torch_variables({**TASK, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29501"})
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.9", "29501")
    inside = {**TASK, "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}
    assert torch_variables(inside) == {}
    assert ProcessPlace.of(inside) == ProcessPlace(rank=2, size=4, is_launched=True, port=29500)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        without("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # a shell of salloc
        without("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),  # the batch script: its SLURM_PROCID is 0
        {**TASK, "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"},  # salloc's shell in an interactive step
        {**TASK, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun -n 1 --pty inside a larger allocation
    ],
)
def test_a_process_that_srun_has_not_started_beside_others_is_alone(environment: dict[str, str]) -> None:
    assert torch_variables(environment) == {}
    assert ProcessPlace.of(environment) == ProcessPlace(rank=0, size=1, is_launched=False)


def test_only_one_of_the_two_variables_is_no_launcher() -> None:
    assert ProcessPlace.of({**TASK, "RANK": "0"}) == ProcessPlace(rank=0, size=1, is_launched=False)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("login", "login"),
        ("a1,b[2-3]", "a1"),
        ("node[07-12,40],login", "node07"),
        ("node[003,005]", "node003"),
        ("rack[2-3]-n[11-12]", "rack2-n11"),
        ("gpu[1-2]-ib,gpu9", "gpu1-ib"),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize(
    ("counts", "host", "tasks"), [("4(x2),3", 1, 4), ("4(x2),3", 2, 3), ("2", 0, 2), ("1(x3)", 2, 1)]
)
def test_tasks_of_a_host(counts: str, host: int, tasks: int) -> None:
    environment = {**TASK, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(host)}
    assert ProcessPlace.of(environment).local_size == tasks


def test_hosts_without_counts_have_equally_many_tasks() -> None:
    environment = {**without("SLURM_STEP_TASKS_PER_NODE"), "SLURM_STEP_NUM_TASKS": "8"}
    assert ProcessPlace.of(environment).local_size == 4


def test_neighbouring_jobs_and_steps_meet_at_ports_of_their_own() -> None:
    ports = {port_of(job, step) for job in range(90_000, 90_100) for step in range(16)}
    assert len(ports) == 1600 and min(ports) >= 15_000 and max(ports) < 32_768
