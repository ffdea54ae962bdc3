"""Tasks that `srun` starts, without a launcher of torch's: here processes with the variables that it sets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.values.process_place import PLACE_VARIABLES
from laconic.values.run_config import VARIABLE
from laconic.values.slurm import port_of
from tests.real.launching import SOURCE

SECONDS = 120

TRAINING = """
import json, os
import torch
import laconic

rank, size, part = laconic.rank(), laconic.size(), len(laconic.shard(list(range(12))))
torch.manual_seed(rank)
model = torch.nn.Linear(4, 3)
model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "STRATEGY")
for _ in range(4):
    optimizer.zero_grad()
    model(torch.full((2, 4), float(rank))).square().sum().backward()
    optimizer.step()
laconic.finish(model, optimizer)
host_size = optimizer.session.worker.host_size if hasattr(optimizer, "session") else None
print(json.dumps([rank, size, part, host_size, laconic.gather(float(rank)), model.weight.sum().item()]), flush=True)
"""


def free_job() -> int:
    """A job id whose port nobody uses here."""
    for job in range(os.getpid(), os.getpid() + 900):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port_of(job, 0)))
            except OSError:
                continue
            return job
    raise AssertionError("no port is free")


def tasks(tmp_path: Path, environments: list[dict[str, str]], strategy: str) -> list[list[object]]:
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("STRATEGY", strategy))
    dropped = (VARIABLE, *PLACE_VARIABLES, "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    own = {name: value for name, value in os.environ.items() if name not in dropped}
    started = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**own, "PYTHONPATH": str(SOURCE), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    try:
        answers = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), answers
    return [json.loads(output) for output, _ in answers]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["bsp", "asp / none / ps"])
def test_tasks_of_a_step_train_together(tmp_path: Path, strategy: str) -> None:
    step = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SLURM_STEP_NODELIST": "localhost"}
    step |= {"SLURM_JOB_ID": str(free_job()), "SLURM_JOB_NODELIST": "nowhere[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2"}
    environments = [{**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    first, second = tasks(tmp_path, environments, strategy)
    assert first[:5] == [0, 2, 6, 2, [0.0, 1.0]] and second[:5] == [1, 2, 6, 2, [0.0, 1.0]]
    assert first[5] == second[5], "both have the model that they trained together"


@pytest.mark.long
def test_a_shell_of_salloc_stays_alone(tmp_path: Path) -> None:
    shell = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "nowhere[1-2]"}
    [alone] = tasks(tmp_path, [shell], "bsp")
    assert alone[:3] == [0, 1, 12] and alone[4] == [0.0]


def test_the_page_shows_the_batch_script() -> None:
    root = SOURCE.parent
    assert (root / "examples" / "digits.sbatch").read_text() in (root / "docs" / "integrations.md").read_text()
