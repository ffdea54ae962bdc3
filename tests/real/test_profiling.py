"""`laconic profile` on two real workers: a sound profile, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.values.profile import Profile
from tests.real.launching import SOURCE, START_SECONDS

SCRIPT = """
import torch, laconic
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = laconic.distribute(model, optimizer)
for step in range(40):
    torch.nn.functional.mse_loss(model(torch.ones(4, 8)), torch.zeros(4, 4)).backward()
    optimizer.step()
    optimizer.zero_grad()
print("the whole script ran")
"""


def laconic(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LACONIC_RUN")}
    return subprocess.run(
        [sys.executable, "-m", "laconic", *arguments],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(cwd / "cache")},
        capture_output=True,
        text=True,
        timeout=4 * START_SECONDS,
        check=False,
    )


@pytest.mark.long
def test_a_profiling_run_leaves_a_sound_profile(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    asked = ("profile", "--workers", "2", "--steps", "1", "--out", "p.json", "train.py")
    done = laconic(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the whole script ran" not in done.stdout
    profile = Profile.read(tmp_path / "p.json")
    assert [tensor.name for tensor in profile.model.tensors] == ["2.bias", "2.weight", "0.bias", "0.weight"]
    assert profile.workers == 2 and profile.model.seconds > 0
    assert profile.links is not None
    names = {times.operation for times in profile.links.operations}
    assert names == {"all_reduce", "all_gather", "all_to_all", "broadcast"}
    assert {"cast_fp16", "cast_fp16+error_feedback", "allreduce", "allreduce(rank)"} <= {
        c.words for c in profile.codecs
    }

    again = laconic(*asked, cwd=tmp_path)
    assert again.returncode == 0 and "starting" not in again.stderr  # kept
