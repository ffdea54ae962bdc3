"""`laconic plan` on a user's script: profiled by one worker, kept in the cache, and refused in whole sentences."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.planner.values import Advice

GOOD = """
import torch, laconic
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = laconic.distribute(model, optimizer)
for step in range(100):
    loss = model(torch.ones(4, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    laconic.log(loss=float(loss))
"""


def planned(folder: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "laconic", "plan", str(script), "--workers", "4", "--network", "100mbit", *more]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "COLUMNS": "150"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.long
def test_a_script_is_profiled_once(tmp_path: Path) -> None:
    """One process decodes what four would send; the second time nothing is measured."""
    first = planned(tmp_path, GOOD, "--json")
    assert first.returncode == 0, first.stderr
    advice = Advice.from_json(first.stdout)
    assert (advice.workers, advice.tensors) == (4, 4)
    assert any(option.coding_seconds > 0 for option in advice.options), "compression was timed"
    (kept,) = (tmp_path / "laconic" / "profiles").iterdir()
    before = kept.stat().st_mtime_ns
    again = planned(tmp_path, GOOD, "--strategy", "bsp")
    assert again.returncode == 0 and kept.stat().st_mtime_ns == before
    assert "laconic run --workers 4" in again.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('no such file: data.bin')", "ended with exit code 1"),
        ("print('done')", "before it had taken"),
        ("import torch, laconic\nm = torch.nn.Linear(2, 2)\nlaconic.distribute(m, None)", "ended with exit code"),
    ],
)
def test_a_script_that_cannot_be_profiled(tmp_path: Path, text: str, says: str) -> None:
    result = planned(tmp_path, text)
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert says in last
    assert "Traceback" not in result.stdout
    if "exit code" in says:
        kept = Path(last.rpartition(" in ")[2])
        log = (kept / "rank-0.log").read_text()
        assert "Error" in log or "needs a torch.optim.Optimizer" in log, "the log that the message names is there"
        shutil.rmtree(kept.parent)


@pytest.mark.long
def test_the_best_rows_are_trained_where_that_is_asked_for(tmp_path: Path) -> None:
    result = planned(tmp_path, GOOD, "--verify", "40s")
    assert result.returncode == 0, result.stderr
    assert "Trained on 4 virtual workers" in result.stdout
