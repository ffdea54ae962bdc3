"""What a comparison records of a worker: each life of a rank is a worker of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
import torch
import laconic
from laconic.values.run_config import RunConfig
import os

def script():
    model = torch.nn.Linear(2, 1)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        laconic.log(loss=1.0)

for steps, folder in ((2, sys.argv[1]), (3, sys.argv[2]), (4, sys.argv[2])):
    os.environ.update(RunConfig(folder=folder, record_steps=True).to_env())
    laconic.simulate(script, 2)
"""


@pytest.mark.long
def test_each_life_is_recorded_and_the_last_in_a_folder_counts(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    subprocess.run([sys.executable, "-c", CODE, str(one), str(other)], check=True, timeout=60)
    for folder, steps in ((one, 2), (other, 4)):
        for rank in range(2):
            lines = (folder / "steps" / f"rank-{rank}.jsonl").read_text().splitlines()
            assert sum("values" not in line for line in lines) == sum("values" in line for line in lines) == steps
